"""Coordination of a request's drafters by the verifier, under a mandate of the client.

It runs the client's session and strategy near the passes. To that session the local request is the verifier: trees
go directly into it, and the session sees its commits on their way to the client.
"""

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import count
from typing import Final

from cosine_node.verifier.admission import MAX_COORDINATED
from cosine_node.verifier.batch import log_of
from cosine_node.verifier.request import VerifierRequest
from cosine_p2p.request.offload import Offload, Threads
from cosine_p2p.session.drafts import Drafts, is_drafter
from cosine_p2p.session.job import AnnouncedVerifier, Job, Shared
from cosine_p2p.session.session import Session
from cosine_p2p.storage.memory import Remembered
from cosine_p2p.strategy.base import StrategyKind
from cosine_p2p.strategy.registry import STRATEGIES
from cosine_p2p.strategy.speed_trial import SpeedTrials
from cosine_p2p.transport.base import Transport
from cosine_p2p.transport.channel import MAX_SENTENCE, StepCounts
from cosine_p2p.transport.link import Delivery, Links, PeerLink, Sink
from cosine_protocol.codec import Message
from cosine_protocol.draft import DRAFT, Mandate, open_mandate
from cosine_protocol.errors import ErrorCode, GenerationFailed, PeerError
from cosine_protocol.fields import MAX_NAME_BYTES, decode_body
from cosine_protocol.identity import Signed
from cosine_protocol.stream import CONSTRAINTS, LOGPROBS, SHAPING, Account, Error
from cosine_protocol.stream import Final as FinalMessage
from cosine_protocol.verify import (
    VERIFY,
    Commit,
    Credit,
    Declined,
    Open,
    Opened,
    Pacing,
    PromptLikelihoods,
    Report,
    Tree,
)

LOG = logging.getLogger(__name__)
KEEP_LINKS_S: Final = 5.0
"""Links to drafters are kept this long, since the next request of a conversation often has the same drafters. Each
costs a heartbeat a second: for eight drafters forty."""


@dataclass(frozen=True, slots=True)
class NamedDrafter:
    """A drafter that a mandate names."""

    peer_id: str
    expertise: tuple[str, ...] = ()
    model: str = ""


@dataclass(slots=True, eq=False)
class OwnLink:
    """A session's link to the verifier in the same node, for one open request."""

    peer_id: str
    opened: Opened
    attach: Callable[[Tree], None]
    remote_progress: StepCounts
    rtt_s: float = 0.0
    features: frozenset[str] = frozenset({SHAPING, CONSTRAINTS, LOGPROBS})
    _sink: Sink | None = None

    async def named_features(self) -> frozenset[str]:
        return self.features

    def subscribe(self, number: int, sink: Sink) -> None:
        self._sink = sink

    def unsubscribe(self, number: int) -> None:
        self._sink = None

    def post(self, message: Message) -> bool:
        """Handle a message of the session; only the client may end the request."""
        match message:
            case Open(number):
                self.deliver(replace(self.opened, number=number))
            case Tree():
                self.attach(message)
        return True

    def deliver(self, message: Message) -> None:
        """Deliver a message of the verifier to the session."""
        body = decode_body(Account, message.body) if isinstance(message, FinalMessage) else None
        if self._sink is not None:
            self._sink(Delivery(self.peer_id, VERIFY, message, body))


@dataclass(frozen=True, slots=True)
class OwnLinks:
    """The links of a session that runs here: to its verifier and to drafters."""

    verifier: OwnLink
    drafters: Links

    async def get(self, peer_id: str, protocol: str) -> PeerLink:
        """The link to this verifier or to a drafter. Raises `PeerLost`."""
        return self.verifier if protocol == VERIFY else await self.drafters.get(peer_id, protocol)

    def alive(self, peer_id: str, protocol: str) -> PeerLink | None:
        """The live link to this verifier or to a drafter."""
        return self.verifier if protocol == VERIFY else self.drafters.alive(peer_id, protocol)


@dataclass(slots=True, eq=False)
class CoordinatedRequest:
    """A coordinated request: its messages to the client, which it also delivers to the session by `link`.

    Before a commit that credits a drafter, it sends the client the fragment that this drafter signed, also after
    the session has ended.
    """

    request: VerifierRequest
    link: OwnLink
    session: Session | None = None
    _is_over: bool = False
    _lost: set[int] = field(default_factory=set)
    abandoned: "asyncio.Future[None]" = field(default_factory=lambda: asyncio.get_running_loop().create_future())
    drafts: Drafts = field(init=False)

    def __post_init__(self) -> None:
        self.drafts = Drafts(self.request.tree.root.digest, len(self.request.output))

    def note(self, message: Message) -> Message:
        """Deliver a message to the session, and return it for the client, with only the credits that are proven."""
        told = message
        if isinstance(message, Commit):
            told = shown = self._shown(message)
            # The transcript is about the client's stream, which began before the session.
            message = replace(shown, transcript=None)
        if isinstance(message, PromptLikelihoods):
            # The session may have begun after some of them.
            return told
        if isinstance(message, FinalMessage | Error):
            self._is_over = True
            if self.session is not None:
                ledger = self.session.ledger
                for author in [author for author in ledger.authors if ledger.told(author)[0]]:
                    self.note_decision(author, "")
        self.link.deliver(message)
        return told

    def _shown(self, commit: Commit) -> Commit:
        """Send the fragments that prove a commit's authors; return the commit without unproven authors."""
        nodes = self.drafts.commit(commit.position, commit.tokens, commit.authors)
        for author, node in zip(commit.authors, nodes, strict=True):
            if node is not None and not node.signed.is_reported:
                node.signed.is_reported = True
                fragment = node.signed.fragment
                self.request.channel.post(Credit(self.request.number, author, fragment.body, fragment.signature))
        if self.session is None:
            return commit
        proven = zip(commit.authors, nodes, strict=True)
        authors = bytes(0 if is_drafter(author) and node is None else author for author, node in proven)
        return replace(commit, authors=authors)

    def note_decision(self, author: int, why: str) -> None:
        """Report a decision to the client."""
        ledger = None if self.session is None else self.session.ledger
        nodes, rtt_s = ledger.told(author) if ledger is not None and author else (0, 0.0)
        offered = None if ledger is None else self.drafts.offered
        words = why.encode()[:MAX_NAME_BYTES].decode(errors="ignore")
        self.request.channel.post(Report(self.request.number, author, nodes, round(1e6 * rtt_s), words, offered))

    def note_lost(self, author: int) -> None:
        """Give up once no drafter is left."""
        self._lost.add(author)
        if self.session is None or self.abandoned.done():
            return
        if not {*self.session.ledger.authors} - self._lost:
            self.abandoned.set_result(None)

    def end(self, reason: str) -> None:
        """End the session; with a reason the client is asked to coordinate."""
        self.session = None
        if reason and not self._is_over:
            self.request.channel.post(Declined(self.request.number, reason[:MAX_SENTENCE]))


class RequestCoordinator:
    """Coordinates requests for clients that gave a mandate; `offload` runs signature checks elsewhere."""

    def __init__(
        self,
        transport: Transport,
        *,
        strategy: StrategyKind = STRATEGIES["cosine"],
        most_requests: int = MAX_COORDINATED,
        stages: int = 0,
        offload: Offload | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._transport = transport
        self._strategy = strategy
        self._most_requests = most_requests
        self._stages = stages
        self._checkers = Threads("signatures", 1)
        self._offload = offload or self._checkers
        self._clock = clock
        self._links = Links(transport)
        # One for each client, so that no client's texts influence the trials of another.
        self._trials: Remembered[str, SpeedTrials] = Remembered(256)
        self._numbers = count(1)
        self._tasks: dict[VerifierRequest, asyncio.Task[None]] = {}
        self._closing: set[asyncio.Task[None]] = set()
        self._uses: Counter[str] = Counter()

    @property
    def requests(self) -> int:
        """The number of requests coordinated now."""
        return len(self._tasks)

    def begin(
        self,
        request: VerifierRequest,
        signed: Signed[Mandate],
        *,
        attach: Callable[[VerifierRequest, Tree], None],
        opened: Opened,
        progress: StepCounts,
    ) -> None:
        """Begin to coordinate a request. Raises `PeerError` with the reason for a refusal."""
        mandate = open_mandate(
            signed,
            client=request.request.client,
            d_0=request.d_0,
            delegate=self._transport.peer_id,
            now_s=self._clock(),
        )
        if len(mandate.drafters) != request.authors or request.pacing is not Pacing.FREE:
            raise PeerError(ErrorCode.BAD_MANDATE, "the mandate does not fit the request")
        if request.is_coordinated:
            raise PeerError(ErrorCode.BAD_MANDATE, "the request had a mandate already")
        if len(self._tasks) >= self._most_requests:
            raise PeerError(ErrorCode.OVERLOADED, f"{self._most_requests} requests are coordinated here already")
        link = OwnLink(self._transport.peer_id, opened, partial(attach, request), progress)
        coordinated = CoordinatedRequest(request, link)
        shared = Shared(
            links=OwnLinks(link, self._links),
            offload=self._offload,
            trials={self._strategy.name: self._trials_of(request.client)},
            numbers=self._numbers,
        )
        job = self._job(request, mandate, signed, opened)
        session = Session(job, shared, observer=coordinated, drafts=coordinated.drafts)
        coordinated.session = session
        request.coordinate(coordinated.note)
        coordinated.note_decision(0, f"the verifier asks {len(mandate.drafters)} drafters")
        log_of(request).info("coordinated here, %d drafters", len(mandate.drafters))
        task = asyncio.ensure_future(self._run(coordinated, session, mandate.drafters))
        self._tasks[request] = task
        task.add_done_callback(lambda _: self._tasks.pop(request, None))

    def end(self, request: VerifierRequest) -> None:
        """Release the drafters of a request; its client coordinates it, or has left."""
        if task := self._tasks.get(request):
            task.cancel()

    async def close(self) -> None:
        tasks = [*self._tasks.values(), *self._closing]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._links.close()
        self._checkers.close()

    def _trials_of(self, client: str) -> SpeedTrials:
        if (trials := self._trials.get(client)) is None:
            trials = SpeedTrials(self._strategy.drafter_counts)
            self._trials.note(client, trials)
        return trials

    def _job(self, request: VerifierRequest, mandate: Mandate, signed: Signed[Mandate], opened: Opened) -> Job:
        return Job(
            deadline_s=asyncio.get_running_loop().time() + mandate.lifetime_s,
            request=request.request,
            strategy=self._strategy,
            verifiers={self._transport.peer_id: AnnouncedVerifier(opened.pass_us / 1e6, self._stages)},
            drafters=tuple(map(NamedDrafter, mandate.drafters)),
            committed=tuple(request.output),
            mandate=signed,
            prompt_window_tokens=mandate.prompt_window_tokens,
        )

    async def _run(self, coordinated: CoordinatedRequest, session: Session, drafters: tuple[str, ...]) -> None:
        """Run a session to the end of its request, or until no drafter is left."""

        async def drive() -> None:
            async for _ in session.stream():
                pass

        self._uses.update(drafters)
        reason = ""
        driving = asyncio.ensure_future(drive())
        try:
            await asyncio.wait([driving, coordinated.abandoned], return_when=asyncio.FIRST_COMPLETED)
            if driving.done():
                driving.result()
            else:
                reason = "no drafter follows"
        except GenerationFailed as failed:
            reason = str(failed)
        except Exception:
            LOG.exception("a request could not be coordinated")
            reason = "the coordination failed"
        finally:
            coordinated.end(reason)
            driving.cancel()
            await asyncio.gather(driving, return_exceptions=True)
            self._uses.subtract(drafters)
            self._closing.add(closing := asyncio.ensure_future(self._drop_unused(drafters)))
            closing.add_done_callback(self._closing.discard)

    async def _drop_unused(self, drafters: tuple[str, ...]) -> None:
        """Close the links to these drafters unless a request uses them again soon."""
        await asyncio.sleep(KEEP_LINKS_S)
        for peer_id in drafters:
            if self._uses[peer_id] <= 0:
                del self._uses[peer_id]
                await self._links.drop(peer_id, DRAFT)
