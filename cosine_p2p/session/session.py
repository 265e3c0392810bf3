"""One generation: translates peers' messages to events of a strategy, and its actions to messages.

A session runs one `Job` to its end. It owns the output, which only grows. All input comes through one inbox, which
only the caller's task in `stream` reads, so no state needs a lock. The session is in one of three states:

no verifier --`_use`--> asked --`Opened`--> serving --`Final`, or the last token--> ended

`_drop` returns to *no verifier* when a verifier breaks the protocol, refuses, is lost, or is too slow (`Watch`);
`VerifierQueue` decides if it is asked again. After a verifier was lost while serving, `_look_again` looks for it
and for others. With no verifier left and no look-up in progress the session ends with `GenerationFailed`, at the
deadline with `GenerationTimedOut`. `Open` is sent with all committed tokens, and each `Commit` must continue the
stream exactly (`Upstream.take`).

`Delegation.coordinator` is undecided until the distance of a verifier is known, then the client, or the verifier
by a mandate until `_take_back`. `DrafterCount` sets the number of drafters.

Invariants: no token is yielded twice or taken back; only the present verifier's messages are read; the strategy
receives no drafter events before a verifier was asked; an ended session sends only `Cancel` and `Release`.
"""

import asyncio
import math
from collections.abc import AsyncGenerator, Awaitable, Mapping
from contextlib import suppress
from typing import Final

from cosine_p2p.own_texts.drafts import OwnDrafts
from cosine_p2p.session.counts import DrafterLedger, PeerFailure, SessionCounts
from cosine_p2p.session.delegation import Coordinator, Delegation
from cosine_p2p.session.drafters import Drafters, DraftingObserver
from cosine_p2p.session.drafts import Drafts
from cosine_p2p.session.job import AnnouncedVerifier, Job, OtherVerifiers, Shared
from cosine_p2p.session.stall import CHECK_EVERY_S, Watch
from cosine_p2p.session.upstream import SignedStreams, Tokens, Upstream, end_of
from cosine_p2p.session.verifier_dials import VerifierDials, VerifierQueue
from cosine_p2p.strategy.base import (
    Action,
    Committed,
    DrafterLost,
    DraftersAllowed,
    Event,
    FragmentReceived,
    RecallDrafter,
    ReleaseDrafter,
    SendAdvance,
    SendAssign,
    SendTree,
    Tick,
    VerifierOpened,
    WakeAt,
)
from cosine_p2p.strategy.speed_trial import DrafterCount, SpeedTrials, TrialPath
from cosine_p2p.strategy.tree import Block
from cosine_p2p.transport.link import Delivery, PeerLink, check_knows
from cosine_p2p.transport.patience import JOIN_PAUSE_S, end_all
from cosine_protocol.digests import request_digest, roll_digest
from cosine_protocol.draft import Assign, NodeBlock
from cosine_protocol.errors import (
    ErrorCode,
    GenerationFailed,
    GenerationTimedOut,
    OlderPeer,
    OptionRefused,
    PeerError,
    PeerLost,
    RemoteProtocolError,
)
from cosine_protocol.request import ConstraintKind, Request
from cosine_protocol.stream import Account, Error, FinishReason
from cosine_protocol.stream import Final as FinalMessage
from cosine_protocol.verify import (
    VERIFY,
    Cancel,
    Commit,
    Credit,
    Declined,
    Likelihood,
    Open,
    Opened,
    Pacing,
    PassStats,
    PromptLikelihoods,
    Report,
    Revoke,
    Tree,
)

ASK_AGAIN_S: Final = JOIN_PAUSE_S  # A network daemon that died, at either end, is back after one to two seconds.
FOUND_AGAIN_S: Final = 10.0  # A node that has moved is found by then (decision 56); served ones get more.
OTHERS_SERVE_S: Final = 2 * ASK_AGAIN_S  # With verifiers of other numerics a new request is faster.
LOOK_SELDOM: Final = 4.0  # Divides the time waited: 13 look-ups a minute; a silent host allows 16 dials.
REFUSED_WITHIN_S: Final = 1.0  # A refusal takes a round trip, a timeout four seconds.


class Session:
    """The run of one job: `stream` yields tokens; the attributes are final once it has ended."""

    def __init__(
        self,
        job: Job,
        shared: Shared,
        *,
        others: OtherVerifiers | None = None,
        own_drafts: OwnDrafts | None = None,
        observer: DraftingObserver | None = None,
        drafts: Drafts | None = None,
    ) -> None:
        self.job = job
        self.number = next(shared.numbers)
        self.verifiers = dict(job.verifiers)
        self._shared = shared
        self._others = others or OtherVerifiers()
        self._own = own_drafts
        self._observer = observer
        self.output = list(job.committed)
        self.prompt_likelihoods: tuple[Likelihood, ...] = ()
        self.finish: FinishReason | None = None
        self.counts = SessionCounts()
        self.signed = SignedStreams()
        self.ledger = DrafterLedger(job.drafters)
        self.d_0 = request_digest(job.request)
        self._digest = roll_digest(self.d_0, job.committed)
        self.drafts = Drafts(self.d_0) if drafts is None else drafts
        self._strategy = job.strategy.make(self.d_0)
        self.delegation = Delegation(job, shared, self.d_0, self.drafts)
        self._wake_at_s: float | None = None
        self._inbox: asyncio.Queue[Delivery | FragmentReceived] = asyncio.Queue()
        self._usual = shared.speeds.usual(job.verifiers, now_s=_now_s())
        self._queue = VerifierQueue(job.verifiers)
        self._upstream: Upstream | None = None
        self._asked: set[str] = set()
        self._drafters = Drafters(
            self.ledger,
            job=job,
            shared=shared,
            number=self.number,
            drafts=self.drafts,
            d_0=self.d_0,
            output=self.output,
            deliver=self._inbox.put_nowait,
        )
        self._dials: VerifierDials[asyncio.Task[None]] = VerifierDials(self._queue)
        self._trials = shared.trials.get(job.strategy.name) or SpeedTrials(())
        self._count = DrafterCount(None, left_tokens=0)
        self._knows_path = self._has_nothing_to_compare
        self._patient_since_s: float | None = None
        self._patience_s = self._look_again_at_s = 0.0
        self._allowed: int | None = -1  # nothing is decided yet
        self._are_drafters_asked = False
        self._finding_more: set[asyncio.Task[None]] = set()
        if job.committed:
            self.drafts.commit(0, job.committed, bytes(len(job.committed)))
            self._on_event(Committed(0, job.committed, PassStats(0, 0, 0)))

    @property
    def serving(self) -> tuple[str, ...]:
        return () if self._upstream is None else (self._upstream.peer_id,)

    async def stream(self) -> AsyncGenerator[Tokens, None]:
        """Yield the output as it is committed, across verifiers. Raises `GenerationFailed` when none is left."""
        self._allow_drafters()
        finding = asyncio.ensure_future(self._add(self._others.present()))
        self._finding_more.add(finding)
        finding.add_done_callback(self._finding_more.discard)
        try:
            while self.finish is None:
                await self._find_verifier()
                if tokens := await self._step():
                    yield tokens
        finally:
            self._count.end()
            self.delegation.end(_now_s())
            if self._upstream is not None:
                self._hang_up(self._upstream)
            for peer_id in self._dials.late(_now_s()):
                self._shared.failures.note_failed(peer_id, now_s=_now_s())
            await asyncio.gather(end_all([*self._finding_more, *self._dials]), self._drafters.close())

    async def _find_verifier(self) -> None:
        self._begin_dials()
        while self._upstream is None:
            left_s = self._time_left()
            if self._dials or self._finding_more:
                wait_s = min(left_s, self._dials.next_late_s(_now_s()) - _now_s())
                await asyncio.wait(
                    (*self._dials, *self._finding_more), timeout=wait_s, return_when=asyncio.FIRST_COMPLETED
                )
            else:
                at_s = self._next_try_at_s()
                if at_s is None or at_s - _now_s() > left_s:
                    raise self._nobody_left()
                await asyncio.sleep(max(0.0, at_s - _now_s()))
                await self._look_again(left_s)
            self._begin_dials()

    def _begin_dials(self) -> None:
        for task in [task for task in self._dials if task.done()]:
            self._dials.note_ended(task)
            task.result()
        for peer_id in self._dials.due(int(self._upstream is None), now_s=_now_s()):
            self._dials.note_begun(asyncio.ensure_future(self._dial(peer_id)), peer_id, now_s=_now_s())

    async def _dial(self, peer_id: str) -> None:
        try:
            link = await self._shared.links.get(peer_id, VERIFY)
            await check_knows(link, self.job.request)
        except PeerLost as lost:
            self._note_failure(peer_id, lost)
            if not isinstance(lost, OlderPeer) and self._patient_since_s is None:
                self._be_patient(min(FOUND_AGAIN_S, self.job.patience_s))
            return
        if self._upstream is None:
            self._use(link)
        else:
            self._queue.put_back(peer_id)

    def _nobody_left(self) -> GenerationFailed:
        if not self.counts.tried:
            return GenerationFailed(
                "No verifier was found for the target; check --initial-peers and that a verifier has joined."
            )
        why = ""
        if self.output:
            others = ", ".join(sorted(self._others.other_numerics))
            why = f": no other verifier with numerics {self.job.request.numerics} continues its text"
            why += f"; available: {others}" if others else ""
        tried = "; ".join(dict.fromkeys(self.counts.tried))
        return GenerationFailed(f"No verifier could finish the request{why}. Tried: {tried}.")

    @property
    def _patient_until_s(self) -> float:
        if self._patient_since_s is None:
            return 0.0
        most_s = OTHERS_SERVE_S if self.output and self._others.other_numerics else math.inf
        return self._patient_since_s + min(self._patience_s, most_s)

    @property
    def _has_other_form(self) -> bool:
        return not self.output and self._others.has_other_form

    def _next_try_at_s(self) -> float | None:
        times_s = [at_s for at_s in [self._queue.next_at_s] if at_s is not None]
        if self._is_look_up_due and not self._has_other_form:
            times_s.append(self._look_again_at_s)
        return min(times_s, default=None)

    @property
    def _is_look_up_due(self) -> bool:
        """False once the next look-up would begin after the patience has ended; the first one is always due."""
        return self._patient_since_s is not None and self._look_again_at_s <= self._patient_until_s

    async def _look_again(self, left_s: float) -> None:
        now_s = _now_s()
        if self._patient_since_s is None or not self._is_look_up_due or now_s < self._look_again_at_s:
            return
        # Counted from the start, since a look-up may take as long as the pause. The last one is at the end.
        next_s = now_s + max(ASK_AGAIN_S, (now_s - self._patient_since_s) / LOOK_SELDOM)
        is_last = now_s < self._patient_until_s < next_s
        self._look_again_at_s = self._patient_until_s if is_last else next_s
        with suppress(TimeoutError):
            async with asyncio.timeout(left_s):
                await self._add(self._others.found_again())

    async def _add(self, found: Awaitable[Mapping[str, AnnouncedVerifier]]) -> None:
        more = await found
        self.verifiers.update(more)
        now_s = _now_s()
        # Without patience one that was asked before is not asked again.
        taken = {*self.serving, *self._dials.early(now_s), *(self._asked if now_s >= self._patient_until_s else ())}
        for peer_id in more:
            if peer_id not in taken:
                self._queue.ask_at_once(peer_id)

    def _use(self, link: PeerLink) -> None:
        job, asked_logprobs = self.job, self.job.request.logprobs
        # One that is asked again may not have ended the first request yet.
        number = next(self._shared.numbers) if link.peer_id in self._asked else self.number
        self._asked.add(link.peer_id)
        tells_prompt = asked_logprobs is not None and asked_logprobs.of_prompt and not self.output
        self._upstream = upstream = Upstream(
            number=number,
            link=link,
            request=job.request,
            d_0=self.d_0,
            digest=self._digest,
            position=len(self.output),
            # With a mandate the verifier sends these to the delegate's client.
            tells_prompt=tells_prompt and job.mandate is None,
            watch=Watch(
                since_s=_now_s(), prompt_tokens=len(job.request.prompt) + len(self.output), usual=self._usual
            ),
        )
        link.subscribe(number, self._inbox.put_nowait)
        asked = (job.request, tuple(self.output), job.strategy.pacing, self.ledger.peer_ids, job.cache_scope)
        # Under plain pacing a verifier does not draft.
        prediction = job.prediction if job.strategy.pacing is Pacing.FREE else None
        link.post(Open(number, *asked, prediction))
        self._find_trial(upstream)
        self._offer_coordination(upstream)

    @property
    def _has_nothing_to_compare(self) -> bool:
        return not self.job.drafters or not self._trials.ways

    def _find_trial(self, upstream: Upstream, break_even: int | None = None) -> None:
        """Use the measurements of a path; a new one needs the verifier's `break_even`."""
        if self._knows_path:
            return
        trials, path = self._trials, TrialPath.of(upstream.peer_id, self.job.request.sampling.temperature)
        trial = trials.find(path, break_even=break_even) if upstream.is_opened else trials.known(path)
        if trial is not None:
            self._knows_path = True
            self._count = DrafterCount(trial, left_tokens=self.job.request.max_new_tokens - len(self.output))

    def _offer_coordination(self, upstream: Upstream) -> None:
        if not self._knows_path:
            return
        mandate = self.delegation.offer(
            upstream,
            self.verifiers[upstream.peer_id],
            drafters_may_pay=self._count.may_pay,
            now_s=_now_s(),
            left_s=max(0.0, self.job.deadline_s - _now_s()),
        )
        if mandate is not None:
            # The delegate's drafters are not measured here.
            self._count.end()
            upstream.link.post(mandate)
        self._note_why(0, self.delegation.take_why())
        self._allow_drafters()

    def _take_back(self, reason: str) -> None:
        if self.delegation.coordinator is Coordinator.VERIFIER:
            if self._upstream is not None:
                self._upstream.link.post(Revoke(self._upstream.number))
            self.delegation.take_back(reason)
            self._note_why(0, self.delegation.take_why())
            if self._upstream is not None:
                self._forget_path()
                self._find_trial(self._upstream)
            self._allow_drafters()

    async def _step(self) -> Tokens | None:
        tokens = None
        match await self._next():
            case None:
                pass
            case Delivery(protocol=protocol) as delivery if protocol == VERIFY:
                tokens = self._on_verifier(delivery)
            case Delivery() as delivery:
                if event := self._drafters.event_of(delivery):
                    self._on_event(event)
                    if isinstance(event, DrafterLost) and self._observer is not None:
                        self._observer.note_lost(event.author)
            case event:
                self._on_event(event)
        # Unread messages may contain the missing progress.
        if self._inbox.empty():
            self.delegation.check_silence(_now_s())
            self._leave_slow()
        if self.delegation.taken_back:
            self._take_back(self.delegation.taken_back)
        return tokens

    def _leave_slow(self) -> None:
        """Drop a verifier that takes too long; it is asked again after all others."""
        if (upstream := self._upstream) is None:
            return
        is_lone = not (self._queue.has_fresh or self._dials or self._has_other_form or self._finding_more)
        done = upstream.link.remote_progress
        if why := upstream.watch.why_leave(_now_s(), report=(done.steps, done.prefill_tokens), is_lone=is_lone):
            self._drop(upstream, PeerLost(upstream.peer_id, why), is_slow=True)
            if not self._has_other_form:
                self._queue.ask_last(upstream.peer_id)
            # The connection may be dead. A verifier that opens again without a commit gets no more time.
            if is_lone and (upstream.watch.commits or (upstream.is_opened and self._patient_since_s is None)):
                self._be_patient(self.job.patience_s)

    async def _next(self) -> Delivery | FragmentReceived | Tick | None:
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
        left_s = self.job.deadline_s - _now_s()
        if left_s <= 0:
            upstream = self._upstream
            if upstream is not None and not upstream.is_opened:
                raise GenerationTimedOut(
                    f"{upstream.peer_id} had no place for the request in time; raise the timeout, or ask later."
                )
            raise GenerationTimedOut("The generation took longer than its timeout; raise it or ask for less.")
        return left_s

    def _on_verifier(self, delivery: Delivery) -> Tokens | None:
        upstream = self._upstream
        if upstream is None or upstream.peer_id != delivery.peer_id:
            return None
        try:
            match delivery.message:
                case None:
                    raise PeerLost(delivery.peer_id, delivery.lost or "the link ended")
                case Opened(_, pass_us, break_even):
                    upstream.is_opened = True
                    upstream.watch.announced_pass_s = pass_us / 1e6
                    self._find_trial(upstream, break_even)
                    self._count.note_pass(pass_us / 1e6)
                    is_here = self.job.mandate is not None
                    has_stages = self.verifiers[upstream.peer_id].stages > 0
                    self._on_event(VerifierOpened(pass_us / 1e6, upstream.link.rtt_s, is_here, has_stages))
                    self._offer_coordination(upstream)
                    self._draft()
                case Commit() | PromptLikelihoods() as told:
                    return self._on_told(upstream, told)
                case FinalMessage() as final if isinstance(delivery.body, Account):
                    self.finish = upstream.finish(final, delivery.body, self.output)
                    if upstream.is_unsigned:
                        self._shared.failures.note_failed(upstream.peer_id, now_s=_now_s())
                    else:
                        self._shared.failures.note_served(upstream.peer_id)
                case Declined() | Credit() | Report() as message:
                    self._on_delegate(message)
                case Error() as error:
                    raise _told(error, self.job.request)
                case other:
                    raise RemoteProtocolError(f"unexpected {type(other).__name__}")
        except (PeerError, PeerLost, RemoteProtocolError) as error:
            self._drop(upstream, error)
        return None

    def _on_delegate(self, message: Declined | Credit | Report) -> None:
        if not self.delegation.was_delegated:
            raise RemoteProtocolError(f"{type(message).__name__} without a mandate")
        match message:
            case Declined(_, reason):
                self._take_back(f"the verifier declined, {reason}")
            case Credit():
                self.delegation.note_credit(message)
            case Report(_, author, nodes, rtt_us, why, offered):
                self.drafts.note_told_offered(offered or 0)
                self.delegation.note_report(author, rtt_us / 1e6, now_s=_now_s())
                if author in self.ledger.authors:
                    self.ledger.note_told(author, nodes, rtt_us / 1e6)
                self._note_why(author if author in self.ledger.authors else 0, why)

    def _on_told(self, upstream: Upstream, commit: Commit | PromptLikelihoods) -> Tokens | None:
        """Add the tokens of a commit to the output, and notify the strategy, drafters and counts."""
        if isinstance(commit, PromptLikelihoods):
            upstream.take_prompt_likelihoods(commit)
            return None
        position = len(self.output)
        upstream.take(commit, authors=len(self.job.drafters))
        if not position:
            self.prompt_likelihoods = tuple(upstream.told[: upstream.prompt_told])
        self.output.extend(commit.tokens)
        self._digest = commit.digest
        self.signed.note(upstream)
        nodes = self.drafts.commit(position, commit.tokens, commit.authors)
        authors = self.delegation.checked_authors(commit.authors, nodes, now_s=_now_s())
        self.counts.note_commit(upstream.peer_id, authors, commit.stats)
        self.counts.passes.note(commit.stats, is_first=not upstream.watch.commits)
        self.ledger.credit(authors)
        upstream.watch.note_commit(_now_s())
        if self._own is not None:
            self._own.follow(commit.tokens)
            self._draft()
        self._on_event(Committed(position, commit.tokens, commit.stats, bytes(authors)))
        self._count.note_pass(commit.stats.pass_us / 1e6)
        self._count.note_commit(authors, now_s=_now_s())
        self._allow_drafters()
        shown = zip(authors, nodes, strict=True)
        confidences = tuple(node.confidence if author and node is not None else None for author, node in shown)
        return Tokens(commit.tokens, authors, commit.likelihoods or (), confidences, self.counts.rounds)

    def _post_tree(self, upstream: Upstream, block: Block) -> None:
        if upstream.is_opened:
            nodes, authors = NodeBlock.of(block.nodes), bytes(block.authors)
            upstream.link.post(Tree(upstream.number, block.base, block.position, nodes, authors))

    def _draft(self) -> None:
        """Send drafts from the user's own texts, for which no drafter is credited."""
        if self._own is not None and self._upstream is not None:
            nodes = tuple(self._own.draft())
            if nodes:
                self._post_tree(self._upstream, Block(self._digest, len(self.output), nodes, (0,) * len(nodes)))

    def _allow_drafters(self) -> None:
        """Apply the trial's number of drafters; they are asked when first needed."""
        if self.delegation.coordinator is not Coordinator.CLIENT or not self._knows_path:
            return
        count = self._count.allowed
        if count != self._allowed:
            self._allowed = count
            if count is not None:
                self._note_why(0, self._count.why())
                self._on_event(DraftersAllowed(count))
        if count != 0 and not self._are_drafters_asked:
            self._are_drafters_asked = True
            self._drafters.follow(*self.ledger.authors)

    def _drop(self, upstream: Upstream, error: PeerFailure, *, is_slow: bool = False) -> None:
        self._forget_path()
        self._note_failure(upstream.peer_id, error)
        if isinstance(error, PeerLost) and not is_slow:
            has_greeted, since_s = upstream.link.features is not None, upstream.watch.since_s
            has_served = upstream.peer_id in self.counts.tokens_by_verifier
            if upstream.is_opened or has_served:
                # A verifier with a dead link was found slow before, and is asked again over it.
                self._queue.back_off(upstream.peer_id, until_s=_now_s() + ASK_AGAIN_S)
                self._be_patient(self.job.patience_s)
            elif has_greeted or _now_s() - since_s > REFUSED_WITHIN_S:
                self._queue.ask_last(upstream.peer_id)
        self._hang_up(upstream)
        self._upstream = None
        self.delegation.lose(upstream.peer_id)
        # After the last token only the account is missing, and no other verifier could add to the stream.
        if not isinstance(error, RemoteProtocolError) and self.finish is None:
            self.finish = end_of(self.output, self.job.request)

    def _be_patient(self, patience_s: float) -> None:
        self._patient_since_s = self._look_again_at_s = _now_s()
        self._patience_s = patience_s

    def _forget_path(self) -> None:
        self._count.end()
        self._knows_path = self._has_nothing_to_compare

    def _hang_up(self, upstream: Upstream) -> None:
        upstream.note_pace(self._shared.speeds, _now_s())
        upstream.link.post(Cancel(upstream.number))
        upstream.link.unsubscribe(upstream.number)

    def _note_failure(self, peer_id: str, error: PeerFailure) -> None:
        # Repeated look-ups of a lost verifier count as one failure.
        if not (isinstance(error, PeerLost) and _now_s() < self._patient_until_s):
            self._shared.failures.note_error(peer_id, error, now_s=_now_s())
        if not isinstance(error, RemoteProtocolError) and error.retry_after_s is not None:
            self._queue.back_off(peer_id, until_s=_now_s() + error.retry_after_s)
        self.counts.note_tried(peer_id, error)

    def _on_event(self, event: Event) -> None:
        for action in self._strategy.on(event, _now_s()):
            self._perform(action)

    def _perform(self, action: Action) -> None:
        match action:
            case SendTree(block):
                if self._upstream is not None:
                    self._post_tree(self._upstream, block)
            case SendAssign(author, base, position, depth, width, window, why, rarity):
                self._note_why(author, why)
                assign = Assign(self.number, base, position, depth, width, window, rarity)
                self._drafters.post(author, assign)
            case SendAdvance(author, position, tokens):
                self._drafters.advance(author, position + len(tokens))
            case ReleaseDrafter(author, why, reason):
                self._note_why(author, f"dropped, {why}")
                self._drafters.release(author, reason)
            case RecallDrafter(author, why):
                self._note_why(author, f"asked again, {why}")
                self._drafters.follow(author)
            case WakeAt(at_s):
                self._wake_at_s = at_s

    def _note_why(self, author: int, why: str) -> None:
        if why:
            self.counts.note_line(f"{self.ledger.domain_of(author)}: {why}" if author else why)
            if self._observer is not None:
                self._observer.note_decision(author, why)


def _told(error: Error, request: Request) -> PeerError | OptionRefused:
    """Convert a verifier's error; one about a constraint would be the same at all verifiers."""
    constraint = request.sampling.constraint
    if constraint is None or error.code != ErrorCode.BAD_CONSTRAINT:
        return PeerError(error.code, error.message, error.retry_after_s)
    option = ConstraintKind(constraint.kind).option
    return OptionRefused(option, f"The {option} cannot be used: {error.message.rstrip('.')}.")


def _now_s() -> float:
    return asyncio.get_running_loop().time()
