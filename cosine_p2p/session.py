"""One generation as it happens: events from links into a strategy, its actions out, tokens to the caller."""

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from cosine_p2p.drafter_ledger import DrafterLedger
from cosine_p2p.link import Delivery, Link, Links
from cosine_p2p.strategies import make_strategy
from cosine_p2p.strategies.base import (
    Action,
    Committed,
    Drafted,
    DrafterLost,
    DrafterStarted,
    Event,
    Opened,
    ReleaseDrafter,
    SendAdvance,
    SendAssign,
    SendTree,
    SendVerify,
    Tick,
    WakeAt,
)
from cosine_protocol import messages as m
from cosine_protocol.digests import request_digest, roll_digest
from cosine_protocol.errors import (
    BadSignature,
    GenerationFailed,
    PeerError,
    PeerLost,
    RemoteProtocolError,
)
from cosine_protocol.identity import verify
from cosine_protocol.messages import FinishReason, Pacing, RequestBody
from cosine_protocol.nodes import NodeBlock
from cosine_protocol.protocols import DRAFT, VERIFY
from cosine_protocol.records import NodeRecord
from cosine_protocol.request import Request

OPEN_TIMEOUT_S: Final = 5.0
STALL_S: Final = 4.0
STALL_PASSES: Final = 5
CHECK_EVERY_S: Final = 0.5
MAX_WHY: Final = 64
MAX_WAITING_FRAGMENTS: Final = 256

Offload = Callable[[Callable[[], None]], Awaitable[None]]
"""Runs a blocking check away from the event loop."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """What a session is to do: the request, who may serve it in order of preference, who may draft."""

    number: int
    deadline_s: float
    request: Request
    strategy: str
    verifiers: tuple[NodeRecord, ...]
    drafters: tuple[NodeRecord, ...]


@dataclass(frozen=True, slots=True)
class Tokens:
    """Output tokens that became certain; `authors[i]` is 0 or 1 + the index of a drafter of the job."""

    tokens: tuple[int, ...]
    authors: bytes


@dataclass(slots=True)
class _Watch:
    """Since when a verifier has shown no progress."""

    pass_s: float = 0.0
    mark: tuple[int, int, int] = (0, 0, 0)
    since_s: float = 0.0
    is_waiting: bool = True
    is_prefilling: bool = True


@dataclass(slots=True)
class Tally:
    """Counts of one session."""

    rounds: int = 0
    near_ties: int = 0
    accepted: int = 0
    tokens_by_verifier: dict[str, int] = field(default_factory=dict)
    tried: list[str] = field(default_factory=list)
    why: list[str] = field(default_factory=list)


class Session:
    """Runs one job. `stream` yields tokens; everything else is there to read once it has ended."""

    def __init__(self, job: Job, links: Links, offload: Offload) -> None:
        self.job = job
        self.output: list[int] = []
        self.finish: FinishReason | None = None
        self.tally = Tally()
        self.ledger = DrafterLedger(job.drafters)
        self._links = links
        self._offload = offload
        self._d_0 = request_digest(job.request)
        self._digest = self._d_0
        self._strategy = make_strategy(job.strategy, self._d_0)
        self._events: asyncio.Queue[Delivery | Drafted] = asyncio.Queue()
        self._fragments: deque[Delivery] = deque(maxlen=MAX_WAITING_FRAGMENTS)
        self._has_fragments = asyncio.Event()
        self._wake_at_s: float | None = None
        self._verifier: Link | None = None
        self._is_opened = False
        self._watch = _Watch()
        self._drafters: dict[int, Link] = {}

    async def stream(self) -> AsyncGenerator[Tokens, None]:
        """The output as it is committed.

        Goes on with the next verifier where one fails. Raises `GenerationFailed` when none is left.
        """
        tasks = [asyncio.ensure_future(self._start_drafter(author)) for author in self.ledger.authors]
        tasks.append(asyncio.ensure_future(self._check_fragments()))
        try:
            for record in self.job.verifiers:
                async for tokens in self._try_verifier(record):
                    yield tokens
                if self.finish is not None:
                    return
            raise GenerationFailed(_nobody_left(self.tally.tried))
        finally:
            self._hang_up()
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _try_verifier(self, record: NodeRecord) -> AsyncGenerator[Tokens, None]:
        """Serve from one verifier until the end or its failure, which is noted."""
        try:
            async for tokens in self._serve(record.peer_id):
                yield tokens
        except PeerError as error:
            self.tally.tried.append(f"{record.peer_id} refused: {error.message}")
        except PeerLost as lost:
            self.tally.tried.append(f"{lost.peer_id} was lost: {lost.reason}")
        except RemoteProtocolError as error:
            self.tally.tried.append(f"{record.peer_id} broke the protocol: {error}")
        finally:
            if self._verifier is not None:
                self._verifier.post(m.Cancel(self.job.number))
                self._verifier.unsubscribe(self.job.number)
                self._verifier = None

    async def _serve(self, peer_id: str) -> AsyncGenerator[Tokens, None]:
        link = self._verifier = await self._links.get(peer_id, VERIFY)
        self._is_opened = False
        link.subscribe(self.job.number, self._events.put_nowait)
        pacing = Pacing.STEPPED if self._strategy.is_stepped else Pacing.FREE
        body = RequestBody.of(self.job.request)
        link.post(m.Open(self.job.number, body, tuple(self.output), pacing, self.ledger.peer_ids))
        self._watch = _Watch(since_s=_now_s())
        while self.finish is None:
            event = await self._next_event(peer_id)
            if isinstance(event, Delivery) and event.peer_id == peer_id and event.protocol == VERIFY:
                if tokens := self._hear_verifier(event):
                    yield tokens
            elif event is not None:
                self._hear_drafter(event)
                self._check_progress(peer_id)

    async def _next_event(self, peer_id: str) -> Delivery | Drafted | None:
        """The next event; None after a tick. Raises `PeerLost` if the verifier stalls meanwhile."""
        now_s = _now_s()
        if now_s >= self.job.deadline_s:
            raise GenerationFailed("The generation took longer than its timeout; raise it or ask for less.")
        if self._wake_at_s is not None and self._wake_at_s <= now_s:
            self._wake_at_s = None
            self._tell(Tick())
            return None
        wait_s = min(CHECK_EVERY_S, (self._wake_at_s or now_s + CHECK_EVERY_S) - now_s)
        try:
            async with asyncio.timeout(wait_s):
                return await self._events.get()
        except TimeoutError:
            self._check_progress(peer_id)
            return None

    def _check_progress(self, peer_id: str) -> None:
        """A verifier that owes us something must show steps (DESIGN section 5)."""
        link, watch, now_s = self._verifier, self._watch, _now_s()
        if link is None or not watch.is_waiting:
            return
        progress = link.channel.remote_progress
        mark = (progress.steps, progress.prefill_tokens, len(self.output))
        if mark != watch.mark:
            watch.mark, watch.since_s = mark, now_s
        limit_s = max(STALL_S, STALL_PASSES * watch.pass_s)
        if watch.is_prefilling:
            limit_s = max(limit_s, watch.pass_s * (len(self.job.request.prompt) + len(self.output)))
        if now_s - watch.since_s > limit_s:
            raise PeerLost(peer_id, f"it made no progress for {limit_s:.0f} s")

    def _hear_verifier(self, delivery: Delivery) -> Tokens | None:
        match delivery.message:
            case None:
                raise PeerLost(delivery.peer_id, delivery.lost or "the link ended")
            case m.Opened(_, pass_us):
                self._is_opened = True
                self._watch.pass_s = pass_us / 1e6
                rtt_s = 0.0 if self._verifier is None else self._verifier.rtt_s
                self._tell(Opened(pass_us / 1e6, rtt_s))
            case m.Commit() | m.Verified() as commit:
                return self._take(delivery.peer_id, commit)
            case m.Final() as final if isinstance(delivery.body, m.Account):
                self._end(delivery.peer_id, final, delivery.body)
            case m.Error(_, code, text, retry_after_s):
                raise PeerError(code, text, retry_after_s)
            case other:
                raise RemoteProtocolError(f"unexpected {type(other).__name__}")
        return None

    def _take(self, peer_id: str, commit: m.Commit | m.Verified) -> Tokens:
        """Check a commit against our own account of the stream and tell the strategy."""
        self._check_commit(commit)
        self.output.extend(commit.tokens)
        self._digest = commit.digest
        self.tally.rounds += 1
        self.tally.near_ties += commit.stats.near_ties
        self.tally.accepted += sum(map(bool, commit.authors))
        by_verifier = self.tally.tokens_by_verifier
        by_verifier[peer_id] = by_verifier.get(peer_id, 0) + len(commit.tokens)
        self.ledger.credit(commit.authors)
        self._watch.is_prefilling = False
        self._watch.is_waiting = not self._strategy.is_stepped
        self._watch.since_s = _now_s()
        self._tell(Committed(commit.position, commit.tokens, commit.digest, commit.stats))
        return Tokens(commit.tokens, commit.authors)

    def _check_commit(self, commit: m.Commit | m.Verified) -> None:
        if commit.position != len(self.output) or not commit.tokens:
            raise RemoteProtocolError("a commit does not continue the stream")
        if len(commit.authors) != len(commit.tokens) or max(commit.authors) > len(self.job.drafters):
            raise RemoteProtocolError("a commit's authors do not fit its tokens")
        if len(self.output) + len(commit.tokens) > self.job.request.max_new_tokens:
            raise RemoteProtocolError("a commit goes past the length asked for")
        if roll_digest(self._digest, commit.tokens) != commit.digest:
            raise RemoteProtocolError("a commit's digest does not follow from its tokens")

    def _end(self, peer_id: str, final: m.Final, account: m.Account) -> None:
        """Take the verifier's signed end of the stream. The reason is checked against the tokens themselves."""
        verify(kind="final", signer=peer_id, digest=self._d_0, body=final.body, signature=final.signature)
        request = self.job.request
        is_eos = bool(self.output) and self.output[-1] in request.eos
        is_full = len(self.output) == request.max_new_tokens
        if account.digest != self._digest or not (is_eos or is_full):
            raise RemoteProtocolError("the verifier ended the stream before its end")
        self.finish = FinishReason.EOS if is_eos else FinishReason.LENGTH

    def _hear_drafter(self, event: Delivery | Drafted) -> None:
        if isinstance(event, Drafted):
            self._tell(event)
            return
        author = self.ledger.author_of(event.peer_id)
        link = self._drafters.get(author)
        match event.message:
            case m.Started(_, prompt_nll, token_us) if link is not None:
                self.ledger.note_rtt(author, link.rtt_s)
                self._tell(DrafterStarted(author, prompt_nll, token_us / 1e6, link.rtt_s))
            case m.Final():
                return
            case _:
                self._drafters.pop(author, None)
                self._tell(DrafterLost(author))

    async def _start_drafter(self, author: int) -> None:
        """Ask one drafter to follow; a drafter that cannot is only a missing hint."""
        peer_id = self.ledger.peer_ids[author - 1]
        try:
            async with asyncio.timeout(OPEN_TIMEOUT_S):
                link = await self._links.get(peer_id, DRAFT)
        except (PeerLost, TimeoutError):
            return
        link.subscribe(self.job.number, self._hear_fragments_apart)
        self._drafters[author] = link
        link.post(m.Start(self.job.number, RequestBody.of(self.job.request), tuple(self.output)))

    def _hear_fragments_apart(self, delivery: Delivery) -> None:
        """Fragments wait for their check in a bounded queue of their own; the oldest go when drafters flood it."""
        if isinstance(delivery.message, m.Fragment):
            self._fragments.append(delivery)
            self._has_fragments.set()
        else:
            self._events.put_nowait(delivery)

    async def _check_fragments(self) -> None:
        """Check signatures off the event loop; a drafter with a bad one is let go."""
        while True:
            while not self._fragments:
                self._has_fragments.clear()
                await self._has_fragments.wait()
            delivery = self._fragments.popleft()
            author = self.ledger.author_of(delivery.peer_id)
            fragment, draft = delivery.message, delivery.body
            if not isinstance(fragment, m.Fragment) or not isinstance(draft, m.Draft):
                continue
            try:
                await self._offload(partial(self._check_fragment, delivery.peer_id, fragment))
            except BadSignature as error:
                self._events.put_nowait(Delivery(delivery.peer_id, DRAFT, None, lost=str(error)))
                continue
            self.ledger.note_drafted(author, len(draft.nodes))
            self._events.put_nowait(Drafted(author, draft))

    def _check_fragment(self, signer: str, fragment: m.Fragment) -> None:
        verify(
            kind="fragment",
            signer=signer,
            digest=self._d_0,
            body=fragment.body,
            signature=fragment.signature,
        )

    def _tell(self, event: Event) -> None:
        for action in self._strategy.on(event, _now_s()):
            self._perform(action)

    def _perform(self, action: Action) -> None:
        number = self.job.number
        match action:
            case SendTree(base, position, nodes, authors):
                self._post_verifier(m.Tree(number, base, position, NodeBlock.of(nodes), bytes(authors)))
            case SendVerify(base, position, nodes, authors):
                self._watch.is_waiting = True
                self._post_verifier(m.Verify(number, base, position, NodeBlock.of(nodes), bytes(authors)))
            case SendAssign(author, base, position, guess, depth, width, window, why):
                self._note_why(author, why)
                assign = m.Assign(number, base, position, guess, depth, width, window)
                self._post_drafter(author, assign)
            case SendAdvance(author, position, tokens):
                self._post_drafter(author, m.Advance(number, position, tokens))
            case ReleaseDrafter(author, why):
                self._note_why(author, f"released: {why}")
                self._post_drafter(author, m.Release(number))
                self._drafters.pop(author, None)
            case WakeAt(at_s):
                self._wake_at_s = at_s

    def _post_verifier(self, message: m.Message) -> None:
        if self._verifier is not None and self._is_opened:
            self._verifier.post(message)

    def _post_drafter(self, author: int, message: m.Message) -> None:
        if link := self._drafters.get(author):
            link.post(message)

    def _note_why(self, author: int, why: str) -> None:
        if len(self.tally.why) < MAX_WHY:
            self.tally.why.append(f"{self.ledger.domain_of(author)}: {why}")

    def _hang_up(self) -> None:
        for follower in self._drafters.values():
            follower.post(m.Release(self.job.number))
        for peer_id in self.ledger.peer_ids:
            if link := self._links.alive(peer_id, DRAFT):
                link.unsubscribe(self.job.number)


def _now_s() -> float:
    return asyncio.get_running_loop().time()


def _nobody_left(tried: list[str]) -> str:
    if not tried:
        return "No verifier was found for the target; check --initial-peers and that a verifier has joined."
    return f"No verifier could finish the request. Tried: {'; '.join(tried)}."
