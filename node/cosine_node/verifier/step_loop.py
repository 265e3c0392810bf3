"""The verifier's step loop *schedule, select, forward, commit*: passes over many requests, one after the other.

Theory of operation
-------------------
Only the task that runs `StepLoop.run` uses the engine. Streams, timers and the coordinator change requests between
two steps and call `wake`. Each turn does this:

1. *Release.* Cancelled requests end, and the sequences of ended requests are released, since the engine must not
   change during a pass.
2. *Draft.* The verifier's own drafter, if there is one, drafts for requests that decode.
3. *Schedule and select.* `PassRows` chooses requests and draft nodes for the next pass and reserves pages; it may
   preempt younger requests, or fail one that can never fit.
4. *Forward.* The rows go to the runner. `PassUnderWay` remembers them, since a request may end meanwhile.
5. *Commit.* Each row's result goes into its request: known tokens become part of the prefix, audits compare, and
   for generation the target's choices are walked down the tree (`VerifierRequest.judge`) and posted, with a
   transcript when it is due and the signed account at the end.

A whole model runs one pass at a time: step 4 is awaited before the next turn. Over stages (`StageChain`) passes
are *ordered*: several may be under way, the next begins when `FeedPace` allows, and known tokens count as fed once
their pass has begun.

A `ServedRequest` goes PREFILL -> DECODE, and back through RECOMPUTE after a preemption or a lost chain. An audit is
fed like RECOMPUTE and ends when all of it is compared. Requests leave `ServedRequests` only in `_forget`.

A row's error fails its request. If a whole pass fails, each row is tried in a pass of its own, so that only the one
at fault fails. If a chain is lost or doubted, all requests resume over another one from their committed tokens. A
pass whose requests are all cancelled is abandoned. A client that does not read is dropped.

Invariants: only tokens that the target chose are committed, once; nothing is posted for a request that has ended;
no pages are released during a pass; one request's error never ends the loop.
"""

import asyncio
import logging
import math
from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import suppress

from cosine_engine.base import PREFIX, Engine, OutOfMemory, PassAbandoned, Row, RowResult
from cosine_engine.constraints.grammars import GrammarTooComplex
from cosine_engine.curve import CostCurve
from cosine_engine.models.unloading import WaitForWork
from cosine_node.chains.chain import StageChain
from cosine_node.chains.search import NoChain
from cosine_node.passes.counts import VerifierCounts
from cosine_node.passes.feed_pace import FeedPace, OneAtATime
from cosine_node.passes.runner import Pass, Runner
from cosine_node.stages.frames import ChainLost
from cosine_node.verifier.admission import RETRY_AFTER_S
from cosine_node.verifier.audits import AuditedStream, cannot_judge
from cosine_node.verifier.home_drafter import HomeDrafter
from cosine_node.verifier.pass_rows import PassRows, PassUnderWay, Rows
from cosine_node.verifier.request import (
    RequestStage,
    ServedRequest,
    Verdict,
    VerifierRequest,
    is_drafter,
)
from cosine_node.verifier.served import ServedRequests, log_of
from cosine_p2p.transport.channel import MAX_SENTENCE, StepCounts
from cosine_protocol.errors import CosineError, ErrorCode, PeerError
from cosine_protocol.identity import Identity, sign
from cosine_protocol.stream import Account, Error, FinishReason
from cosine_protocol.stream import Final as FinalMessage
from cosine_protocol.verify import HOME_AUTHOR, Commit, PassStats, Transcript, is_transcript_due

LOG = logging.getLogger(__name__)


class StepLoop:
    """Runs passes over the served requests. `run` never ends; call `wake` after a change."""

    def __init__(
        self,
        requests: ServedRequests,
        *,
        engine: Engine,
        runner: Runner,
        curve: CostCurve,
        identity: Identity,
        budget_tokens: int,
        counts: VerifierCounts,
        wait_for_work: WaitForWork = asyncio.Event.wait,
        home: HomeDrafter | None = None,
        chain: StageChain | None = None,
        on_place: Callable[[], None] = lambda: None,
        make_rows: Callable[..., PassRows] = PassRows,
    ) -> None:
        """`on_place` is called when a request has ended."""
        self._chain = chain
        self._pace: FeedPace = OneAtATime() if chain is None else chain.pace
        self._requests = requests
        self._on_place = on_place
        self._home = home
        self._engine = engine
        self._runner = runner
        self._identity = identity
        self._rows = make_rows(
            requests,
            engine=engine,
            curve=curve,
            budget_tokens=budget_tokens,
            pace=self._pace,
            fail=self.fail,
        )
        self._counts = counts
        self._wait_for_work = wait_for_work
        self._released: list[int] = []
        self._under_way: deque[PassUnderWay] = deque()
        self._work = asyncio.Event()
        self._drafting: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._drafting.set_result(None)
        self.is_idle = asyncio.Event()
        self.progress = StepCounts()

    @property
    def curve(self) -> CostCurve:
        """The present cost of passes."""
        return self._rows.curve

    async def run(self) -> None:
        """Run passes until cancelled; idle while no request needs one."""
        try:
            while True:
                await self._turn()
        finally:
            self._drafting.cancel()
            for under_way in self._under_way:
                if isinstance(under_way.done, asyncio.Future):
                    under_way.done.cancel()

    async def _turn(self) -> None:
        begun_s = _now_s()
        self._release_ended()
        wait_s = self._pace.wait_s(_now_s(), under_way=len(self._under_way))
        rows: Rows = []
        if self._home is not None and self._pace.is_ordered and self._drafting.done():
            self._drafting = asyncio.ensure_future(self._draft_ahead(self._home))
        if wait_s <= 0:
            if self._home is not None and not self._pace.is_ordered:
                await self._home.draft(self._home_requests(), target_curve=self.curve)
            rows = self._rows.next_rows()
            self._counts.preempted = self._rows.memory.preempted
        if rows:
            self._begin(rows, begun_s=begun_s)
        if not self._pace.is_ordered and self._under_way:
            await self._end_oldest()
        elif self._has_ended:
            while self._has_ended:
                await self._end_oldest()
        elif not rows:
            await self._wait(wait_s)

    @property
    def _has_ended(self) -> bool:
        """True if the oldest pass under way has ended."""
        done = self._under_way[0].done if self._under_way else None
        return isinstance(done, asyncio.Future) and done.done()

    async def _draft_ahead(self, home: HomeDrafter) -> None:
        """Let the verifier's own drafter run one pass beside those over stages."""
        if await home.draft_ahead(self._home_requests()):
            self._work.set()

    async def _wait(self, seconds: float) -> None:
        """Wait for work; the next pass may begin in `seconds`."""
        if not len(self._requests):
            self.is_idle.set()
        self._work.clear()
        if not self._under_way:
            await self._wait_for_work(self._work)
            return
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds if 0 < seconds < math.inf else None):
                await self._work.wait()

    def wake(self) -> None:
        """Notify the loop of a change. Passes over cancelled requests only are abandoned."""
        self._work.set()
        served = [request for under_way in self._under_way for request, _ in under_way.rows]
        if served and all(request.is_cancelled for request in served):
            self._runner.abandon()

    def fail(self, request: ServedRequest, error: CosineError) -> None:
        """End a request with an error; an error that is no `PeerError` is one of the model or a constraint."""
        if not isinstance(error, PeerError):
            is_complex = isinstance(error, GrammarTooComplex)
            error = PeerError(ErrorCode.BAD_CONSTRAINT if is_complex else ErrorCode.BAD_LOGITS, str(error))
        request.post(Error(request.number, error.code, str(error)[:MAX_SENTENCE], error.retry_after_s))
        log_of(request).info("failed, %s", error)
        self._forget(request, "error")

    def _release_ended(self) -> None:
        for request in self._requests:
            if request.is_cancelled and isinstance(request, VerifierRequest):
                self._finish(request, FinishReason.CANCELLED)
            elif request.is_cancelled:
                self._forget(request, "cancelled")
        for sequence in self._released:
            self._engine.release(sequence)
        self._released.clear()

    def _home_requests(self) -> list[VerifierRequest]:
        """The requests of the next pass that the verifier's own drafter may draft for."""
        return [
            request
            for request in self._requests.active
            if isinstance(request, VerifierRequest)
            and request.stage is RequestStage.DECODE
            and (self._rows.debt.may_join or not request.has_crowd)
            and request.may_be_drafted_for
            and not request.is_cancelled
        ]

    def _begin(self, rows: Rows, *, begun_s: float) -> None:
        """Begin a pass, whose turn began at `begun_s`. In ordered passes known tokens count as fed at once."""
        now_s = _now_s()
        nodes = tuple(
            0 if request.stage is not RequestStage.DECODE else len(row.tokens) - (row.parents[0] == PREFIX)
            for request, row in rows
        )
        done: Awaitable[Pass] = self._runner.forward([row for _, row in rows])
        if self._pace.is_ordered:

            def note_done(ended: asyncio.Future[Pass]) -> None:
                self._work.set()
                # Retrieve the error, since a loop that has ended does not.
                _ = ended.cancelled() or ended.exception()

            done = asyncio.ensure_future(done)
            done.add_done_callback(note_done)
        under_way = PassUnderWay(rows, nodes, done, begun_s)
        self._pace.note_begun(now_s, tokens=under_way.tokens)
        self._under_way.append(under_way)
        for (request, row), count in zip(rows, nodes, strict=True):
            if isinstance(request, VerifierRequest) and request.stage is RequestStage.DECODE:
                if self._pace.is_ordered and request.account is not None and len(self._requests) > 1:
                    spent_s = self.curve.seconds(under_way.tokens) - self.curve.seconds(under_way.tokens - count)
                    request.account.charge(spent_s=spent_s, tokens=0, plain_pass_s=self.curve.seconds(1))
                drafted = (node for node, name in request.fed.items() if name in row.nodes)
                self._counts.verified_nodes += sum(
                    any(map(is_drafter, node.draft_probabilities)) for node in drafted
                )
            elif row.scored_from < len(row.tokens):
                request.awaits_prefill = True
            elif self._pace.is_ordered:
                self._take_known(request, row)

    async def _end_oldest(self) -> None:
        """Wait for the oldest pass under way, and apply its results to its requests."""
        under_way = self._under_way[0]
        rows = under_way.rows
        failure: Exception | None = None
        try:
            done = await under_way.done
        except PassAbandoned:
            self._counts.passes_abandoned += 1
            for request, row in rows:
                request.unfeed(row)
            return
        except ChainLost as lost:
            LOG.warning("%s", lost)
            failure = lost
        except Exception as error:
            LOG.exception("a pass over %d requests failed", len(rows))
            failure = error
        finally:
            self._under_way.popleft()
        if failure is not None:
            self._counts.passes_failed += 1
            if isinstance(failure, ChainLost) and self._chain is not None:
                await self._go_on_elsewhere(self._chain)
            else:
                await self._take_apart(under_way, failure)
            return
        if self._take_results(under_way, done) and self._chain is not None:
            await self._go_on_elsewhere(self._chain)

    def _take_results(self, under_way: PassUnderWay, done: Pass) -> bool:
        """Apply the results of a pass to its requests; True if its chain is doubted and must be left."""
        rows = under_way.rows
        is_doubted = False
        self._pace.note_ended(_now_s(), begun_s=under_way.begun_s, tokens=under_way.tokens)
        self.progress.steps += 1
        self._counts.note_pass(seconds=done.elapsed_s, rows=len(rows))
        for (request, row), nodes, result in zip(rows, under_way.nodes, done.results, strict=True):
            if request not in self._requests or row.sequence != request.kv.sequence:
                continue
            if result.error is not None:
                # Another last stage may give tokens for it.
                is_doubted = is_doubted or (self._chain is not None and self._chain.doubt())
                if not is_doubted:
                    self.fail(request, result.error)
            elif not request.is_cancelled:
                try:
                    self._take(request, row, result, done, nodes=nodes, load=len(rows))
                except CosineError as error:  # one request's failure must not end the loop for the others
                    log_of(request).exception("a commit failed")
                    self.fail(request, PeerError(ErrorCode.INTERNAL, str(error)))
        self._rows.note_pass(under_way, forward_s=done.elapsed_s, ended_s=_now_s())
        return is_doubted

    async def _take_apart(self, failed: PassUnderWay, error: Exception) -> None:
        """Fail the only request of a pass; of several, run each in a pass of its own to find the one at fault."""
        if len(failed.rows) > 1:
            for row, nodes in zip(failed.rows, failed.nodes, strict=True):
                done = self._runner.forward([row[1]])
                self._under_way.appendleft(PassUnderWay([row], (nodes,), done, _now_s()))
                await self._end_oldest()
            return
        [(request, _)] = failed.rows
        if isinstance(error, OutOfMemory):
            self.fail(request, PeerError(ErrorCode.OUT_OF_MEMORY, str(error), RETRY_AFTER_S))
        else:
            self.fail(request, PeerError(ErrorCode.INTERNAL, "a forward pass failed"))

    async def _go_on_elsewhere(self, chain: StageChain) -> None:
        """Resume all requests over another chain from their committed tokens; fail them if there is none."""
        lost = [under_way.done for under_way in self._under_way]
        self._under_way.clear()
        await asyncio.gather(*lost, return_exceptions=True)
        try:
            await chain.find()
        except NoChain as error:
            for request in self._requests:
                self.fail(request, PeerError(ErrorCode.NO_CHAIN, str(error)))
            return
        for request in self._requests:
            if request.request.sampling.constraint is not None and self._engine.grammars is None:
                sentence = "the stages that are left apply no constraints"
                self.fail(request, PeerError(ErrorCode.UNSUPPORTED, sentence))
        # The sequences of the lost chain are gone with it.
        self._released.clear()
        for request in self._requests:
            self._rows.memory.begin_anew(request)

    def _take(
        self, request: ServedRequest, row: Row, result: RowResult, done: Pass, *, nodes: int, load: int
    ) -> None:
        """Apply one row's result of a pass over `load` requests, and post it to the client."""
        if isinstance(request, AuditedStream):
            # In ordered passes, results of unscored tokens come while a compared row is under way.
            if result.choices or not self._pace.is_ordered:
                request.awaits_prefill = False
                request.compare(result.choices, result.likelihoods)
                self._take_known(request, row)
                if request.is_compared:
                    self._end_audit(request)
            return
        assert isinstance(request, VerifierRequest), "there are two kinds"
        self._post_prompt(request, row, result)
        if not result.choices:
            if not self._pace.is_ordered:
                self._take_known(request, row)
            return
        is_prefill = request.stage is RequestStage.PREFILL
        verdict = request.judge(row, result.choices, result.likelihoods)
        if not verdict.tokens:
            return
        self._counts.committed_tokens += len(verdict.tokens)
        self._counts.accepted_nodes += sum(map(is_drafter, verdict.authors))
        self._counts.home_nodes += verdict.authors.count(HOME_AUTHOR)
        self._engine.keep(request.kv.sequence, verdict.accepted_nodes)
        if is_prefill:
            self._note_fed(request, row)
        else:
            spent_s, plain_pass_s = done.elapsed_s, self.curve.seconds(load)
            if self._pace.is_ordered:
                # The nodes were charged when they were fed.
                spent_s = plain_pass_s = self.curve.seconds(load) / load
            without_s = self.curve.seconds(load + nodes - request.beside_home)
            beside_home_s = self.curve.seconds(load + nodes) - without_s
            request.charge(
                verdict, nodes=nodes, spent_s=spent_s, plain_pass_s=plain_pass_s, beside_home_s=beside_home_s
            )
        dropped = request.commit(verdict)
        self._engine.prune(request.kv.sequence, dropped)
        self._report(request, verdict, nodes, done)
        if verdict.finish is not None:
            self._finish(request, verdict.finish)

    def _end_audit(self, request: AuditedStream) -> None:
        """Post the findings of an audit, unless the stages that computed it are in doubt."""
        why_not = None if self._chain is None else self._chain.why_not_judge
        if why_not is not None:
            self.fail(request, cannot_judge(why_not))
            return
        self._counts.audited_tokens += len(request.output) - request.own_from
        log_of(request).info("audited, %d tokens differ", len(request.different))
        stages = self._chain.stages if self._chain is not None else ()
        request.post(request.answer(self._identity, stages=stages))
        self._forget(request, "audited")

    def _post_prompt(self, request: VerifierRequest, row: Row, result: RowResult) -> None:
        """Post the likelihoods of fed prompt tokens."""
        likelihoods = request.take_prompt_likelihoods(row, result.likelihoods)
        if likelihoods is not None and not request.post(likelihoods):
            request.is_cancelled = True

    def _take_known(self, request: ServedRequest, row: Row) -> None:
        """Make fed known tokens part of the prefix."""
        self._engine.keep(request.kv.sequence, row.nodes)
        self._note_fed(request, row)

    def _note_fed(self, request: ServedRequest, row: Row) -> None:
        self.progress.prefill_tokens += len(row.tokens)
        request.note_fed(len(row.tokens))

    def _report(self, request: VerifierRequest, verdict: Verdict, nodes: int, done: Pass) -> None:
        """Post the committed tokens, with a transcript when it is due; cancel if the client reads too slowly."""
        cached = (
            min(request.kv.cached_tokens, len(request.request.prompt)) if verdict.position == request.first else 0
        )
        stats = PassStats(nodes, verdict.near_ties, round(1e6 * done.elapsed_s), cached or None)
        digest = request.tree.root.digest
        transcript = told = None
        if request.request.logprobs is not None:
            request.told.add(verdict.likelihoods)
            told = request.told.digest()
        has_ended = verdict.finish is not None
        if is_transcript_due(before=verdict.position, after=len(request.output), has_ended=has_ended):
            committed = Transcript(request.first, len(request.output), digest, told)
            transcript = sign(self._identity, committed, digest=request.d_0)
        place = (verdict.position, verdict.tokens, digest, verdict.authors, stats, transcript)
        likelihoods = None if told is None else verdict.likelihoods
        if not request.post(Commit(request.number, *place, likelihoods)):
            request.is_cancelled = True

    def _finish(self, request: VerifierRequest, reason: FinishReason) -> None:
        accepted = tuple(request.accepted[author] for author in range(1, request.authors + 1))
        account = Account(request.number, reason, len(request.output), request.tree.root.digest, accepted)
        signed = sign(self._identity, account, digest=request.d_0)
        request.post(FinalMessage(signed.body, signed.signature))
        ending = reason.name.lower()
        log_of(request).info("%s, %d tokens", ending, len(request.output))
        self._forget(request, ending)

    def _forget(self, request: ServedRequest, ending: str) -> None:
        if self._requests.remove(request):
            if self._home is not None and isinstance(request, VerifierRequest):
                self._home.forget(request)
            self._counts.ended[ending] += 1
            self._released.append(request.kv.sequence)
            self._on_place()
            self.wake()


def _now_s() -> float:
    return asyncio.get_running_loop().time()
