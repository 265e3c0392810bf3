"""Tests of the drafters of a session and of their counts."""

import asyncio
from dataclasses import dataclass, field, replace
from typing import Any, cast

from cosine_lab.emulation.virtual_loop import call_at_once
from cosine_p2p.session.counts import DrafterLedger
from cosine_p2p.session.drafters import MAX_WAITING_FRAGMENTS, Drafters
from cosine_p2p.session.drafts import Drafts
from cosine_p2p.session.job import Job, Shared
from cosine_p2p.strategy.base import DrafterLost, DrafterStarted, FragmentReceived
from cosine_p2p.strategy.registry import STRATEGIES
from cosine_p2p.transport.link import Delivery, PeerLinks, Sink
from cosine_protocol.codec import Message
from cosine_protocol.digests import request_digest
from cosine_protocol.draft import (
    BASE,
    DRAFT,
    MAX_COMMIT_TOKENS,
    WINDOWS,
    Advance,
    Draft,
    Fragment,
    Node,
    NodeBlock,
    Release,
    ReleaseReason,
    Start,
    Started,
)
from cosine_protocol.errors import PeerLost
from cosine_protocol.fields import encode_body
from cosine_protocol.stream import Final as FinalMessage
from cosine_protocol.verify import Cancel
from tests.cosine_p2p.samples import identity_of, record_of, request_of
from tests.scenes import in_virtual_time

REQUEST = replace(request_of("client", max_new_tokens=2000), prompt=(3, 2, 1), nonce=bytes(range(16)))
D_0 = request_digest(REQUEST)
NUMBER = 4
STARTED = Started(NUMBER, 1.5, 2000)


@dataclass(slots=True)
class FakeLink:
    """A link that stores at most `room` posted messages."""

    peer_id: str = "peer"
    posted: list[Message] = field(default_factory=list)
    room: int = 1000
    rtt_s: float = 0.02
    sinks: dict[int, Sink] = field(default_factory=dict)
    names: frozenset[str] = frozenset({WINDOWS})
    greets_after_s: float = 0.0

    async def named_features(self) -> frozenset[str]:
        await asyncio.sleep(self.greets_after_s)
        return self.names

    def post(self, message: Message) -> bool:
        has_room = len(self.posted) < self.room
        self.posted += [message] if has_room else []
        return has_room

    def subscribe(self, number: int, sink: Sink) -> None:
        self.sinks[number] = sink

    def unsubscribe(self, number: int) -> None:
        self.sinks.pop(number, None)


class Swarm:
    """Two drafters of one request; the second cannot be reached unless it has a link."""

    def __init__(self, link: FakeLink | None = None, other: FakeLink | None = None, **job: Any) -> None:
        self.link = link or FakeLink()
        self.links = {peer(1): self.link} | ({peer(2): other} if other else {})
        self.output: list[int] = []
        self.delivered: list[Delivery | FragmentReceived] = []
        self.ledger = DrafterLedger([record_of(identity_of(n), now_s=0.0) for n in (1, 2)])
        facts: dict[str, Any] = {"verifiers": {}, "drafters": (), "strategy": STRATEGIES["cosine"]}
        made = Job(deadline_s=60.0, **{"request": REQUEST, **facts, **job})
        self.drafters = Drafters(
            self.ledger,
            job=made,
            shared=Shared(links=cast("PeerLinks", self), offload=call_at_once),
            number=NUMBER,
            drafts=Drafts(D_0),
            d_0=D_0,
            output=self.output,
            deliver=self.delivered.append,
        )

    async def get(self, peer_id: str, protocol: str) -> FakeLink:
        assert protocol == DRAFT
        if peer_id not in self.links:
            raise PeerLost(peer_id, "nobody answers")
        return self.links[peer_id]

    def alive(self, peer_id: str, protocol: str) -> FakeLink | None:
        return self.links.get(peer_id)

    async def follow(self, *authors: int) -> None:
        self.drafters.follow(*authors)
        await asyncio.sleep(0.1)

    def event(self, message: Message) -> DrafterStarted | DrafterLost | None:
        return self.drafters.event_of(Delivery(peer(1), DRAFT, message))

    async def taken(self, *batches: list[Delivery]) -> tuple[list[tuple[int, int]], list[Delivery]]:
        """Return authors and sequence numbers of accepted fragments, and refused deliveries, of some batches."""
        for batch in batches:
            for delivery in batch:
                self.links[delivery.peer_id].sinks[NUMBER](delivery)
            await asyncio.sleep(1.0)
        received = [one for one in self.delivered if isinstance(one, FragmentReceived)]
        refused = [one for one in self.delivered if isinstance(one, Delivery)]
        return [(one.author, one.draft.sequence) for one in received], refused


def peer(number: int) -> str:
    return identity_of(number).peer_id


def fragment(sequence: int = 1, *, sender: int = 1, signer: int | None = None) -> Delivery:
    draft = Draft(NUMBER, sequence, D_0, 0, NodeBlock.of([Node(BASE, 7, 1.0)]))
    body = encode_body(draft)
    signature = identity_of(signer or sender).sign(kind="fragment", digest=D_0, body=body)
    return Delivery(peer(sender), DRAFT, Fragment(body, signature), draft)


@in_virtual_time
async def test_a_drafter_that_starts_late_is_told_what_was_committed_meanwhile() -> None:
    swarm = Swarm()
    swarm.output.append(5)
    await swarm.follow(1)
    assert swarm.link.posted == [Start(NUMBER, REQUEST, (5,))]
    swarm.output += [6, 7]
    assert swarm.event(STARTED) == DrafterStarted(1, 1.5, 0.002, 0.02)
    assert swarm.link.posted[1:] == [Advance(NUMBER, 1, (6, 7))]
    assert swarm.ledger.reports() == ()


@in_virtual_time
async def test_one_that_knows_windows_gets_the_end_of_the_prompt_and_the_digest_once_it_has_said_so() -> None:
    swarm = Swarm(FakeLink(greets_after_s=0.15), prompt_window_tokens=2)
    await swarm.follow(1)
    assert swarm.link.posted == []
    await asyncio.sleep(0.1)
    shown = replace(REQUEST, prompt=(2, 1), nonce=bytes(16))
    assert swarm.link.posted == [Start(NUMBER, shown, (), d_0=D_0)]


@in_virtual_time
async def test_long_commits_go_in_parts_and_what_a_full_link_refused_goes_later() -> None:
    swarm = Swarm(FakeLink(room=2))
    await swarm.follow(1)
    swarm.output += range(2 * MAX_COMMIT_TOKENS + 1)
    swarm.drafters.advance(1, len(swarm.output))
    swarm.link.room = 1000
    swarm.drafters.advance(1, len(swarm.output))
    parts = [message for message in swarm.link.posted if isinstance(message, Advance)]
    assert [part.position for part in parts] == [0, MAX_COMMIT_TOKENS, 2 * MAX_COMMIT_TOKENS]
    assert [token for part in parts for token in part.tokens] == swarm.output


@in_virtual_time
async def test_one_that_cannot_be_reached_is_lost_and_one_released_meanwhile_never_starts() -> None:
    swarm = Swarm()
    swarm.drafters.follow(2, 1)
    swarm.drafters.release(1)
    await asyncio.sleep(0.1)
    [lost] = swarm.delivered
    assert isinstance(lost, Delivery) and swarm.drafters.event_of(lost) == DrafterLost(2)
    assert swarm.link.posted == []


@in_virtual_time
async def test_a_message_out_of_place_ends_a_drafter() -> None:
    swarm = Swarm()
    assert swarm.event(STARTED) == DrafterLost(1)
    await swarm.follow(1)
    assert swarm.event(FinalMessage(b"", bytes(64))) is None
    assert swarm.event(Cancel(NUMBER)) == DrafterLost(1)
    assert swarm.link.posted[-1] == Release(NUMBER, 0, 0, ReleaseReason.ENDED)


@in_virtual_time
async def test_after_one_bad_signature_nothing_of_its_sender_is_taken() -> None:
    swarm = Swarm(other=FakeLink())
    await swarm.follow(1, 2)
    first = [fragment(1), fragment(2, signer=3), fragment(3), fragment(1, sender=2)]
    passed, refused = await swarm.taken(first, [fragment(4)])
    assert passed == [(1, 1), (2, 1)]
    assert [swarm.drafters.event_of(one) for one in refused] == [DrafterLost(1)]
    assert swarm.ledger.drafted == 2
    await swarm.drafters.close()
    assert swarm.link.sinks == {}


@in_virtual_time
async def test_a_flood_costs_its_sender_alone() -> None:
    swarm = Swarm(other=FakeLink())
    await swarm.follow(1, 2)
    flood = [fragment(n) for n in range(1, 2 * MAX_WAITING_FRAGMENTS + 1)]
    passed, _ = await swarm.taken([*flood[:-1], fragment(1, sender=2), fragment(2, sender=2), flood[-1]])
    assert [place for place, (author, _) in enumerate(passed) if author == 2] == [1, 3]
    assert len(passed) == MAX_WAITING_FRAGMENTS + 2
    assert passed[-1] == (1, 2 * MAX_WAITING_FRAGMENTS)
