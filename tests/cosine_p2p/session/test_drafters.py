"""Drafters are told the stream without gaps, and what they send becomes events only if it is signed."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, cast

import pytest

from cosine_lab.emulation.virtual_loop import run_virtual
from cosine_p2p.session.drafters import START_TIMEOUT_S, DrafterLedger, Drafters
from cosine_p2p.session.job import Job
from cosine_p2p.strategy.base import DrafterLost, DrafterStarted, FragmentReceived
from cosine_p2p.strategy.registry import STRATEGIES
from cosine_p2p.transport.link import Delivery, PeerLinks, Sink
from cosine_p2p.trust.peer_memory import PeerFailures
from cosine_protocol import messages as m
from cosine_protocol.codec import encode_body
from cosine_protocol.digests import request_digest
from cosine_protocol.errors import PeerLost
from cosine_protocol.limits import MAX_COMMIT_TOKENS
from cosine_protocol.messages import SignedMandate
from cosine_protocol.nodes import BASE, Node, NodeBlock
from cosine_protocol.protocols import DRAFT, LEARNING, WINDOWS
from cosine_protocol.request import Request, Sampling
from tests.cosine_p2p.samples import identity_of, record_of

REQUEST = Request(
    target_digest=bytes(32),
    tokenizer_digest=bytes(32),
    numerics="float32",
    prompt=(3, 2, 1),
    sampling=Sampling(),
    eos=(9,),
    client="client",
    nonce=bytes(range(16)),
    max_new_tokens=2000,
)
D_0 = request_digest(REQUEST)
NUMBER = 4


@dataclass(slots=True)
class FakeLink:
    """A link that keeps what is posted, as many messages as it has room for."""

    posted: list[m.Message] = field(default_factory=list)
    room: int = 1000
    rtt_s: float = 0.02
    sinks: dict[int, Sink] = field(default_factory=dict)
    names: frozenset[str] = frozenset({WINDOWS})
    greets_after_s: float = 0.0

    async def named_features(self) -> frozenset[str]:
        await asyncio.sleep(self.greets_after_s)
        return self.names

    def post(self, message: m.Message) -> bool:
        if len(self.posted) >= self.room:
            return False
        self.posted.append(message)
        return True

    def subscribe(self, number: int, sink: Sink) -> None:
        self.sinks[number] = sink

    def unsubscribe(self, number: int) -> None:
        self.sinks.pop(number, None)


@dataclass(slots=True)
class Swarm:
    """Two drafters, of which the second cannot be reached."""

    output: list[int] = field(default_factory=list)
    delivered: list[Delivery | FragmentReceived] = field(default_factory=list)
    link: FakeLink = field(default_factory=FakeLink)
    links: dict[int, FakeLink] = field(default_factory=dict)
    window_tokens: int | None = None
    shares: bool = False
    mandate: SignedMandate | None = None
    pupil: int = 0
    ledger: DrafterLedger = field(
        default_factory=lambda: DrafterLedger([record_of(identity_of(n), now_s=0.0) for n in (1, 2)])
    )

    async def get(self, peer_id: str, protocol: str) -> FakeLink:
        assert protocol == DRAFT
        if link := self.links.get(self.ledger.author_of(peer_id)):
            return link
        if peer_id != peer(1):
            raise PeerLost(peer_id, "nobody answers")
        return self.link

    def alive(self, peer_id: str, protocol: str) -> FakeLink | None:
        return self.link if peer_id == peer(1) else None

    def drafters(self) -> Drafters:
        return Drafters(
            self.ledger,
            job=Job(
                number=NUMBER,
                deadline_s=60.0,
                request=REQUEST,
                strategy=STRATEGIES["cosine"],
                verifiers=(),
                drafters=(),
                prompt_window_tokens=self.window_tokens,
                shares_feedback=self.shares,
                mandate=self.mandate,
                pupil=self.pupil,
            ),
            d_0=D_0,
            links=cast("PeerLinks", self),
            output=self.output,
            offload=_at_once,
            deliver=self.delivered.append,
            failures=PeerFailures(),
        )

    def sends(self, message: m.Message | None, *, sender: int = 1, body: m.Draft | None = None) -> Delivery:
        return Delivery(peer(sender), DRAFT, message, body)


def peer(number: int) -> str:
    return identity_of(number).peer_id


async def _at_once(check: Callable[[], None]) -> None:
    check()


def started() -> m.Started:
    return m.Started(NUMBER, 1.5, 2000)


def test_a_drafter_that_starts_late_is_told_what_was_committed_meanwhile() -> None:
    async def scene() -> None:
        swarm = Swarm(output=[5])
        drafters = swarm.drafters()
        drafters.follow(1)
        await asyncio.sleep(0.1)
        assert swarm.link.posted == [m.Start(NUMBER, REQUEST, (5,))]
        swarm.output += [6, 7]
        assert drafters.event_of(swarm.sends(started())) == DrafterStarted(1, 1.5, 0.002, 0.02)
        assert swarm.link.posted[1:] == [m.Advance(NUMBER, 1, (6, 7))]
        assert swarm.ledger.reports() == ()

    run_virtual(scene())


def test_one_that_knows_windows_gets_the_end_of_the_prompt_and_the_digest_once_it_has_said_so() -> None:
    async def scene() -> None:
        swarm = Swarm(output=[5], window_tokens=2, link=FakeLink(greets_after_s=0.1))
        drafters = swarm.drafters()
        drafters.follow(1)
        await asyncio.sleep(0.05)
        assert swarm.link.posted == []
        await asyncio.sleep(0.1)
        shown = replace(REQUEST, prompt=(2, 1), nonce=bytes(16))
        assert swarm.link.posted == [m.Start(NUMBER, shown, (5,), d_0=D_0)]

    run_virtual(scene())


@pytest.mark.parametrize("how", [{"names": frozenset()}, {"greets_after_s": 2 * START_TIMEOUT_S}])
def test_one_that_does_not_say_that_it_knows_windows_is_shown_nothing(how: dict[str, Any]) -> None:
    async def scene() -> None:
        link = FakeLink(**how)
        swarm = Swarm(window_tokens=2, link=link)
        swarm.drafters().follow(1)
        await asyncio.sleep(3 * START_TIMEOUT_S)
        [lost] = swarm.delivered
        assert link.posted == [] and isinstance(lost, Delivery) and lost.lost

    run_virtual(scene())


@pytest.mark.parametrize("names", [frozenset(), frozenset({WINDOWS}), frozenset({WINDOWS, LEARNING})])
@pytest.mark.parametrize("mandate", [None, SignedMandate(b"", bytes(64))])
def test_one_that_knows_of_it_is_told_that_it_may_keep_the_text_unless_a_mandate_says_so(
    names: frozenset[str], mandate: SignedMandate | None
) -> None:
    async def scene() -> None:
        swarm = Swarm(shares=True, mandate=mandate, link=FakeLink(names=names, greets_after_s=0.1))
        swarm.drafters().follow(1)
        await asyncio.sleep(0.05)
        # Only who may have to be told is waited for.
        assert bool(swarm.link.posted) == (mandate is not None)
        await asyncio.sleep(0.1)
        told = True if LEARNING in names and mandate is None else None
        assert swarm.link.posted == [m.Start(NUMBER, REQUEST, (), mandate, shares_feedback=told)]

    run_virtual(scene())


def test_one_that_only_learns_is_told_all_that_is_committed_and_is_no_drafter_to_the_strategy() -> None:
    async def scene() -> None:
        swarm = Swarm(output=[5], pupil=1)
        drafters = swarm.drafters()
        drafters.teach()
        drafters.follow(1)
        await asyncio.sleep(0.1)
        assert drafters.event_of(swarm.sends(started())) is None
        swarm.output += [6, 7]
        drafters.teach()
        drafters.teach()
        assert swarm.link.posted == [m.Start(NUMBER, REQUEST, (5,)), m.Advance(NUMBER, 1, (6, 7))]

    run_virtual(scene())


@pytest.mark.parametrize("pupil", [0, 1])
def test_what_one_that_only_learns_drafts_unasked_counts_for_nothing(pupil: int) -> None:
    async def scene() -> None:
        swarm = Swarm(pupil=pupil)
        drafters = swarm.drafters()
        checking = asyncio.ensure_future(drafters.check_fragments())
        drafters.follow(1)
        await asyncio.sleep(0.1)
        draft = m.Draft(NUMBER, 1, D_0, 0, NodeBlock.of([Node(BASE, 7, 1.0)]))
        body = encode_body(draft)
        signature = identity_of(1).sign(kind="fragment", digest=D_0, body=body)
        swarm.link.sinks[NUMBER](swarm.sends(m.Fragment(body, signature), body=draft))
        await asyncio.sleep(0.1)
        assert swarm.delivered == ([] if pupil else [FragmentReceived(1, draft)])
        checking.cancel()

    run_virtual(scene())


def test_the_loss_of_one_that_only_learns_is_told_to_those_who_count_the_drafters_left() -> None:
    async def scene() -> None:
        swarm = Swarm(pupil=1)
        drafters = swarm.drafters()
        drafters.follow(1)
        await asyncio.sleep(0.1)
        assert drafters.event_of(swarm.sends(m.Busy(NUMBER, 1.0))) == DrafterLost(1)
        swarm.output.append(8)
        drafters.teach()
        assert swarm.link.posted[1:] == [m.Release(NUMBER)]

    run_virtual(scene())


@pytest.mark.parametrize("first", ["pupil", "drafter"])
@pytest.mark.parametrize(("nats", "is_kept"), [(0.0, True), (0.9, True), (1.1, False), (5.0, False)])
def test_one_that_only_learns_goes_where_the_prompt_is_far_from_its_domain(
    nats: float, is_kept: bool, first: str
) -> None:
    async def scene() -> None:
        swarm = Swarm(pupil=2, links={1: FakeLink(), 2: FakeLink()})
        drafters = swarm.drafters()
        drafters.follow(1, 2)
        await asyncio.sleep(0.1)
        says = {"pupil": (2, 1.0 + nats), "drafter": (1, 1.0)}
        for sender, nll in (says[first], *(say for who, say in says.items() if who != first)):
            drafters.event_of(swarm.sends(m.Started(NUMBER, nll, 2000), sender=sender))
        swarm.output.append(9)
        drafters.teach()
        last = m.Advance(NUMBER, 0, (9,)) if is_kept else m.Release(NUMBER)
        assert swarm.links[2].posted[-1] == last
        assert swarm.links[1].posted == [m.Start(NUMBER, REQUEST, ())]

    run_virtual(scene())


def test_long_commits_go_in_parts_and_what_a_full_link_refused_goes_later() -> None:
    async def scene() -> None:
        swarm = Swarm(link=FakeLink(room=2))
        drafters = swarm.drafters()
        drafters.follow(1)
        await asyncio.sleep(0.1)
        swarm.output += range(2 * MAX_COMMIT_TOKENS + 1)
        drafters.advance(1, len(swarm.output))
        swarm.link.room = 1000
        drafters.advance(1, len(swarm.output))
        parts = [message for message in swarm.link.posted if isinstance(message, m.Advance)]
        assert [part.position for part in parts] == [0, MAX_COMMIT_TOKENS, 2 * MAX_COMMIT_TOKENS]
        assert [token for part in parts for token in part.tokens] == swarm.output

    run_virtual(scene())


def test_one_that_cannot_be_reached_is_lost_and_one_released_meanwhile_never_starts() -> None:
    async def scene() -> None:
        swarm = Swarm()
        drafters = swarm.drafters()
        drafters.follow(2)
        drafters.follow(1)
        drafters.release(1)
        await asyncio.sleep(0.1)
        [lost] = swarm.delivered
        assert isinstance(lost, Delivery) and drafters.event_of(lost) == DrafterLost(2)
        assert swarm.link.posted == []

    run_virtual(scene())


def test_a_message_out_of_place_ends_a_drafter() -> None:
    async def scene() -> None:
        swarm = Swarm()
        drafters = swarm.drafters()
        assert drafters.event_of(swarm.sends(started())) == DrafterLost(1)
        drafters.follow(1)
        await asyncio.sleep(0.1)
        assert drafters.event_of(swarm.sends(m.Final(b"", bytes(64)))) is None
        assert drafters.event_of(swarm.sends(m.Cancel(NUMBER))) == DrafterLost(1)
        assert swarm.link.posted[-1] == m.Release(NUMBER)

    run_virtual(scene())


def test_only_signed_fragments_are_delivered_and_counted() -> None:
    async def scene() -> None:
        swarm = Swarm()
        drafters = swarm.drafters()
        checking = asyncio.ensure_future(drafters.check_fragments())
        drafters.follow(1)
        await asyncio.sleep(0.1)
        draft = m.Draft(NUMBER, 1, D_0, 0, NodeBlock.of([Node(BASE, 5, 1.0)]))
        body = encode_body(draft)
        for signer in (1, 2):
            signature = identity_of(signer).sign(kind="fragment", digest=D_0, body=body)
            swarm.link.sinks[NUMBER](swarm.sends(m.Fragment(body, signature), body=draft))
            await asyncio.sleep(0.1)
        received, refused = swarm.delivered
        assert received == FragmentReceived(1, draft)
        assert isinstance(refused, Delivery) and drafters.event_of(refused) == DrafterLost(1)
        assert swarm.ledger.drafted == 1
        checking.cancel()
        await drafters.close()
        assert swarm.link.sinks == {}

    run_virtual(scene())
