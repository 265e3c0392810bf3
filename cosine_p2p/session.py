"""One generation as it happens: messages from links become events of a strategy, its actions messages again."""

import asyncio
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import Final

from cosine_p2p.drafter_count import DrafterCount
from cosine_p2p.drafter_ledger import DrafterLedger
from cosine_p2p.drafters import Drafters
from cosine_p2p.fragments import Offload
from cosine_p2p.job import Job
from cosine_p2p.link import Delivery, Link, Links
from cosine_p2p.peer_failures import PeerFailures
from cosine_p2p.peer_speeds import PeerSpeeds
from cosine_p2p.session_counts import SessionCounts
from cosine_p2p.stall import Stalled, TooSlow, Watch
from cosine_p2p.strategies.base import (
    Action,
    Committed,
    DraftersAllowed,
    Event,
    FragmentReceived,
    RecallDrafter,
    ReleaseDrafter,
    SendAdvance,
    SendAssign,
    SendTree,
    SendVerify,
    Tick,
    VerifierOpened,
    WakeAt,
)
from cosine_p2p.upstream import Upstream, end_of
from cosine_p2p.verifier_dials import VerifierDials
from cosine_p2p.verifier_queue import VerifierQueue
from cosine_protocol import messages as m
from cosine_protocol.digests import request_digest
from cosine_protocol.errors import (
    ErrorCode,
    GenerationFailed,
    GenerationTimedOut,
    PeerError,
    PeerLost,
    RemoteProtocolError,
)
from cosine_protocol.limits import HOME_AUTHOR
from cosine_protocol.messages import FinishReason
from cosine_protocol.nodes import NodeBlock
from cosine_protocol.protocols import VERIFY

CHECK_EVERY_S: Final = 0.5
"""A choice: how late a verifier that makes no progress may be noticed."""
EXPECTED_REFUSALS: Final = frozenset({ErrorCode.OVERLOADED, ErrorCode.SHUTTING_DOWN, ErrorCode.OUT_OF_MEMORY})
"""Refusals of a verifier that is busy or leaves, whatever its record said some seconds ago."""


@dataclass(frozen=True, slots=True)
class Tokens:
    """Committed output tokens; `authors[i]` is 0, 1 + the index of a drafter of the job, or `HOME_AUTHOR`."""

    tokens: tuple[int, ...]
    authors: bytes


class Session:
    """Runs one job. `stream` yields tokens; everything else is there to read once it has ended."""

    def __init__(
        self, job: Job, links: Links, offload: Offload, *, failures: PeerFailures, speeds: PeerSpeeds
    ) -> None:
        """`failures` is told of verifiers that fail or serve, `speeds` of their pace."""
        self.job = job
        self._failures = failures
        self._speeds = speeds
        self.output: list[int] = []
        self.finish: FinishReason | None = None
        self.counts = SessionCounts()
        self.ledger = DrafterLedger(job.drafters)
        self.d_0 = request_digest(job.request)
        self._links = links
        self._digest = self.d_0
        self._strategy = job.strategy.make(self.d_0)
        self._wake_at_s: float | None = None
        self._inbox: asyncio.Queue[Delivery | FragmentReceived] = asyncio.Queue()
        peer_ids = [record.peer_id for record in job.verifiers]
        self._usual = speeds.usual(peer_ids, now_s=_now_s())
        self._queue = VerifierQueue(peer_ids)
        self._upstreams: dict[str, Upstream] = {}
        self._asked: set[str] = set()
        self._drafters = Drafters(
            self.ledger,
            number=job.number,
            request=job.request,
            d_0=self.d_0,
            links=links,
            output=self.output,
            offload=offload,
            deliver=self._inbox.put_nowait,
            failures=failures,
        )
        self._dials = VerifierDials(self._queue, links, use=self._use, lose=self._note_failure)
        trial = job.trial if job.drafters else None
        self._count = DrafterCount(trial, left_tokens=job.request.max_new_tokens)
        self._allowed: int | None = -1  # nothing is decided yet
        self._are_drafters_asked = False

    @property
    def serving(self) -> tuple[str, ...]:
        """The verifiers that have the request now."""
        return tuple(self._upstreams)

    async def stream(self) -> AsyncGenerator[Tokens, None]:
        """The output as it is committed.

        Goes on with the next verifier where one fails. Raises `GenerationFailed` when none is left.
        """
        self._allow_drafters()
        checking = asyncio.ensure_future(self._drafters.check_fragments())
        try:
            while self.finish is None:
                await self._fill_slots()
                if tokens := await self._step():
                    yield tokens
        finally:
            self._count.end()
            for upstream in self._upstreams.values():
                upstream.note_pace(self._speeds, _now_s(), is_stepped=self.job.strategy.is_stepped)
                self._hang_up(upstream)
            for peer_id in self._dials.late(_now_s()):
                self._failures.note_failed(peer_id, now_s=_now_s())
            checking.cancel()
            closing = (self._dials.close(), self._drafters.close())
            await asyncio.gather(checking, *closing, return_exceptions=True)

    async def _fill_slots(self) -> None:
        """Have the request opened wherever a slot for a verifier is free; waits only while nobody serves it.

        Raises `GenerationFailed` if nobody can be asked any more before the deadline.
        """
        self._dial_spares()
        while not self._upstreams:
            left_s = self._time_left()
            if self._dials:
                await self._dials.wait(left_s)
            else:
                at_s = self._queue.next_at_s
                if at_s is None or at_s - _now_s() > left_s:
                    raise GenerationFailed(_nobody_left(self.counts.tried))
                await asyncio.sleep(max(0.0, at_s - _now_s()))
            self._dial_spares()

    def _dial_spares(self) -> None:
        self._dials.begin(self.job.strategy.verifiers - len(self._upstreams), now_s=_now_s())

    def _use(self, link: Link) -> bool:
        """Open the request on a link if there is a slot for its verifier."""
        if len(self._upstreams) >= self.job.strategy.verifiers:
            return False
        self._open(link)
        return True

    def _open(self, link: Link) -> None:
        job, peer_id = self.job, link.channel.peer_id
        taken = {upstream.slot for upstream in self._upstreams.values()}
        number = next(job.more_numbers, job.number) if peer_id in self._asked else job.number
        self._asked.add(peer_id)
        upstream = Upstream(
            slot=next(slot for slot in range(job.strategy.verifiers) if slot not in taken),
            number=number,
            link=link,
            request=job.request,
            d_0=self.d_0,
            digest=self._digest,
            position=len(self.output),
            watch=Watch(
                since_s=_now_s(), prompt_tokens=len(job.request.prompt) + len(self.output), usual=self._usual
            ),
        )
        self._upstreams[peer_id] = upstream
        link.subscribe(number, self._inbox.put_nowait)
        asked = (job.request, tuple(self.output), job.strategy.pacing, self.ledger.peer_ids, job.cache_scope)
        link.post(m.Open(number, *asked))

    async def _step(self) -> Tokens | None:
        """Wait for one message or the strategy's tick and act on it; a verifier that fails is noted and let go."""
        tokens = None
        match await self._next():
            case None:
                pass
            case Delivery(protocol=protocol) as delivery if protocol == VERIFY:
                tokens = self._on_verifier(delivery)
            case Delivery() as delivery:
                if event := self._drafters.event_of(delivery):
                    self._on_event(event)
            case event:
                self._on_event(event)
        # What is still unread may be the very progress that is missed.
        if self._inbox.empty():
            self._leave_slow()
        return tokens

    def _leave_slow(self) -> None:
        """Drop verifiers that take too long; one that may still serve is asked again after all others."""
        has_offers = self.job.has_other_offers and not self.output
        for upstream in list(self._upstreams.values()):
            is_lone = not (self._queue.has_fresh or self._dials or len(self._upstreams) > 1 or has_offers)
            try:
                upstream.check_progress(_now_s(), is_lone=is_lone)
            except Stalled as stall:
                self._drop(upstream, PeerLost(upstream.peer_id, str(stall)))
            except TooSlow as slow:
                self._drop(upstream, PeerLost(upstream.peer_id, str(slow)))
                if not has_offers:
                    self._queue.ask_last(upstream.peer_id)

    async def _next(self) -> Delivery | FragmentReceived | Tick | None:
        """The next message, or the tick that the strategy asked for; None after `CHECK_EVERY_S` without any."""
        self._time_left()
        now_s = _now_s()
        if self._wake_at_s is not None and self._wake_at_s <= now_s:
            self._wake_at_s = None
            return Tick()
        wait_s = min(CHECK_EVERY_S, (self._wake_at_s or now_s + CHECK_EVERY_S) - now_s)
        try:
            async with asyncio.timeout(wait_s):
                return await self._inbox.get()
        except TimeoutError:
            return None

    def _time_left(self) -> float:
        """Seconds to the deadline. Raises `GenerationTimedOut` once it has passed."""
        left_s = self.job.deadline_s - _now_s()
        if left_s <= 0:
            raise GenerationTimedOut("The generation took longer than its timeout; raise it or ask for less.")
        return left_s

    def _on_verifier(self, delivery: Delivery) -> Tokens | None:
        """Act on a verifier's message; one that fails is dropped."""
        upstream = self._upstreams.get(delivery.peer_id)
        if upstream is None:
            return None
        try:
            match delivery.message:
                case None:
                    raise PeerLost(delivery.peer_id, delivery.lost or "the link ended")
                case m.Opened(_, pass_us):
                    upstream.is_opened = True
                    upstream.watch.announced_pass_s = pass_us / 1e6
                    self._count.note_pass(pass_us / 1e6)
                    opened = VerifierOpened(pass_us / 1e6, upstream.link.rtt_s, upstream.position, upstream.slot)
                    self._on_event(opened)
                case m.Commit() | m.Verified() as commit:
                    return self._on_commit(upstream, commit)
                case m.Final() as final if isinstance(delivery.body, m.Account):
                    self.finish = upstream.finish(final, delivery.body, self.output)
                    self._failures.note_served(upstream.peer_id)
                case m.Error(_, code, text, retry_after_s):
                    raise PeerError(code, text, retry_after_s)
                case other:
                    raise RemoteProtocolError(f"unexpected {type(other).__name__}")
        except (PeerError, PeerLost, RemoteProtocolError) as error:
            self._drop(upstream, error)
        return None

    def _on_commit(self, upstream: Upstream, commit: m.Commit | m.Verified) -> Tokens | None:
        """Check a commit against our own account of the stream and tell the strategy."""
        position = len(self.output)
        tokens = upstream.take(commit, self.output, authors=len(self.job.drafters))
        self.output.extend(tokens)
        if upstream.position == len(self.output):
            self._digest = commit.digest
        authors = commit.authors[len(commit.authors) - len(tokens) :]
        self.counts.rounds += 1
        self.counts.near_ties += commit.stats.near_ties
        home_tokens = authors.count(HOME_AUTHOR)
        self.counts.home_tokens += home_tokens
        self.counts.accepted += sum(map(bool, authors)) - home_tokens
        by_verifier = self.counts.tokens_by_verifier
        by_verifier[upstream.peer_id] = by_verifier.get(upstream.peer_id, 0) + len(tokens)
        self.ledger.credit(authors)
        has_ended = end_of(self.output, self.job.request) is not None
        upstream.watch.settle(_now_s(), owes_more=has_ended or not self.job.strategy.is_stepped)
        self._on_event(Committed(position, tokens, commit.digest, commit.stats, upstream.slot))
        self._count.note_pass(commit.stats.pass_us / 1e6)
        self._count.note_commit(authors, now_s=_now_s())
        self._allow_drafters()
        return Tokens(tokens, authors) if tokens else None

    def _allow_drafters(self) -> None:
        """Let as many drafters draft as the trial wants now; they are asked on first need."""
        count = self._count.allowed
        if count == self._allowed:
            return
        self._allowed = count
        if count is not None:
            self.counts.note_line(self._count.why())
            self._on_event(DraftersAllowed(count))
        if count != 0 and not self._are_drafters_asked:
            self._are_drafters_asked = True
            for author in self.ledger.authors:
                self._drafters.follow(author)

    def _drop(self, upstream: Upstream, error: PeerError | PeerLost | RemoteProtocolError) -> None:
        if self._count.allowed is not None:
            # What was measured is true of the verifier that is lost.
            self._count.end()
            self._on_event(DraftersAllowed(max(self.job.strategy.drafter_counts)))
            self._allow_drafters()
        self._note_failure(upstream.peer_id, error)
        upstream.note_pace(self._speeds, _now_s(), is_stepped=self.job.strategy.is_stepped)
        self._upstreams.pop(upstream.peer_id)
        self._hang_up(upstream)
        # A verifier that leaves after the last token owes only its account; nobody else could add to the stream.
        if not isinstance(error, RemoteProtocolError) and self.finish is None:
            self.finish = end_of(self.output, self.job.request)

    def _hang_up(self, upstream: Upstream) -> None:
        upstream.link.post(m.Cancel(upstream.number))
        upstream.link.unsubscribe(upstream.number)

    def _note_failure(self, peer_id: str, error: PeerError | PeerLost | RemoteProtocolError) -> None:
        if not (isinstance(error, PeerError) and error.code in EXPECTED_REFUSALS):
            self._failures.note_failed(peer_id, now_s=_now_s())
        match error:
            case PeerError():
                self.counts.tried.append(f"{peer_id} refused: {error.message}")
                if error.retry_after_s is not None:
                    self._queue.back_off(peer_id, until_s=_now_s() + error.retry_after_s)
            case PeerLost():
                self.counts.tried.append(f"{peer_id} was lost: {error.reason}")
            case _:
                self.counts.tried.append(f"{peer_id} broke the protocol: {error}")

    def _on_event(self, event: Event) -> None:
        """Give an event to the strategy and do what it decides."""
        for action in self._strategy.on(event, _now_s()):
            self._perform(action)

    def _perform(self, action: Action) -> None:
        number = self.job.number
        match action:
            case SendTree() | SendVerify():
                self._post_block(action)
            case SendAssign(author, base, position, guess, depth, width, window, why):
                self._note_why(author, why)
                self._drafters.post(author, m.Assign(number, base, position, guess, depth, width, window))
            case SendAdvance(author, position, tokens):
                self._drafters.advance(author, position + len(tokens))
            case ReleaseDrafter(author, why):
                self._note_why(author, f"dropped, {why}")
                self._drafters.release(author)
            case RecallDrafter(author, why):
                self._note_why(author, f"asked again, {why}")
                self._drafters.follow(author)
            case WakeAt(at_s):
                self._wake_at_s = at_s

    def _post_block(self, action: SendTree | SendVerify) -> None:
        """Send a tree to every verifier that has opened the request, or a block to the one that is to verify it."""
        block = action.block
        nodes, authors = NodeBlock.of(block.nodes), bytes(block.authors)
        for upstream in self._upstreams.values():
            if not upstream.is_opened:
                continue
            if isinstance(action, SendTree):
                upstream.link.post(m.Tree(upstream.number, block.base, block.position, nodes, authors))
            elif upstream.slot == action.verifier:
                upstream.watch.expect(_now_s())
                upstream.link.post(m.Verify(upstream.number, block.base, block.position, nodes, authors))

    def _note_why(self, author: int, why: str) -> None:
        self.counts.note_line(f"{self.ledger.domain_of(author)}: {why}")


def _now_s() -> float:
    return asyncio.get_running_loop().time()


def _nobody_left(tried: list[str]) -> str:
    if not tried:
        return "No verifier was found for the target; check --initial-peers and that a verifier has joined."
    return f"No verifier could finish the request. Tried: {'; '.join(dict.fromkeys(tried))}."
