"""The verifier's step loop *schedule, select, forward, commit*: passes over many requests, one after the other.

Theory of operation
-------------------
Only the task that runs the loop uses the engine. Streams, timers and the coordinator change requests between two
turns and call `wake`. Each turn does this:

1. *Release.* Cancelled requests end, and the sequences of ended requests are released, since the engine must not
   change during a pass.
2. *Draft.* The verifier's own drafter, if there is one, drafts for requests that decode.
3. *Schedule and select.* The batch chooses requests and draft nodes for the next pass and reserves pages; it may
   preempt younger requests. Requests that can never fit fail.
4. *Forward.* The rows go to the runner. `PassUnderWay` remembers them, since a request may end meanwhile.
5. *Commit.* Each request takes its result. The loop applies the outcome: nodes become part of the sequence's prefix
   or leave it, messages are posted, and a request that is done ends.

Over stages several passes may be under way (`chain_loop`).

A row's error fails its request. If a whole pass fails, each row is tried in a separate pass, so that only the one
at fault fails. A pass whose requests are all cancelled is abandoned. A client that does not read is dropped.

Invariants: only tokens that the target chose are committed, once; nothing is posted for a request that has ended;
no pages are released during a pass; one request's error never ends the loop. Requests leave the batch only in
`_forget`.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Sequence

from cosine_engine.base import Engine, OutOfMemory, PassAbandoned, Row, RowResult
from cosine_engine.constraints.grammars import GrammarTooComplex
from cosine_engine.models.unloading import WaitForWork
from cosine_node.passes.counts import VerifierCounts
from cosine_node.passes.runner import Pass, Runner
from cosine_node.verifier.admission import RETRY_AFTER_S
from cosine_node.verifier.batch import PassBatch, PassUnderWay, log_of
from cosine_node.verifier.home_drafter import HomeDrafter
from cosine_node.verifier.request import VerifierRequest, is_drafter
from cosine_node.verifier.served_request import PassShare, RequestStage, ServedRequest
from cosine_p2p.transport.channel import MAX_SENTENCE, StepCounts
from cosine_protocol.errors import CosineError, ErrorCode, PeerError
from cosine_protocol.stream import Error, FinishReason
from cosine_protocol.verify import HOME_AUTHOR

LOG = logging.getLogger(__name__)


class StepLoop:
    """Runs the passes of a batch, one at a time. Call `turn` repeatedly, and `wake` after a change."""

    def __init__(
        self,
        batch: PassBatch,
        *,
        engine: Engine,
        runner: Runner,
        counts: VerifierCounts,
        wait_for_work: WaitForWork = asyncio.Event.wait,
        home: HomeDrafter | None = None,
        on_end: Callable[[], None] = lambda: None,
    ) -> None:
        """`on_end` is called when a request has ended, so that its place is free."""
        self.batch = batch
        self.requests = batch.requests
        self.engine = engine
        self.counts = counts
        self.progress = StepCounts()
        self.is_idle = asyncio.Event()
        self._runner = runner
        self._wait_for_work = wait_for_work
        self._home = home
        self._on_end = on_end
        self._released: list[int] = []
        self._under_way: deque[PassUnderWay] = deque()
        self._work = asyncio.Event()

    async def turn(self) -> None:
        """Run the next pass, or wait until there is work."""
        begun_s = _now_s()
        self._release_ended()
        if self._home is not None:
            await self._home.draft(self.batch.draftable, target_curve=self.batch.costs.curve)
        if self._begin(begun_s=begun_s):
            await self._end_oldest()
        else:
            await self._wait()

    def close(self) -> None:
        """End what is under way."""

    @property
    def stages(self) -> Sequence[str]:
        """The peer ids of the stages that compute the passes."""
        return ()

    @property
    def why_not_judge(self) -> str | None:
        """The reason why no audit can be judged now."""
        return None

    async def _wait(self) -> None:
        """Wait until there is work."""
        self._note_idle()
        await self._wait_for_work(self._work)

    def _note_idle(self) -> None:
        """Prepare to wait for `_work`."""
        if not len(self.requests):
            self.is_idle.set()
        self._work.clear()

    def wake(self) -> None:
        """Notify the loop of a change. Passes over cancelled requests only are abandoned."""
        self._work.set()
        served = [request for under_way in self._under_way for request, _, _ in under_way.rows]
        if served and all(request.is_cancelled for request in served):
            self._runner.abandon()

    def fail(self, request: ServedRequest, error: CosineError) -> None:
        """End a request with an error; one other than `PeerError` is an error of the model or a constraint."""
        if not isinstance(error, PeerError):
            is_complex = isinstance(error, GrammarTooComplex)
            error = PeerError(ErrorCode.BAD_CONSTRAINT if is_complex else ErrorCode.BAD_LOGITS, str(error))
        request.post(Error(request.number, error.code, str(error)[:MAX_SENTENCE], error.retry_after_s))
        log_of(request).info("failed, %s", error)
        self._forget(request, "error")

    def _release_ended(self) -> None:
        for request in self.requests:
            if request.is_cancelled:
                self._finish(request, FinishReason.CANCELLED)
        for sequence in self._released:
            self.engine.release(sequence)
        self._released.clear()

    def _begin(self, *, begun_s: float) -> bool:
        """Begin a pass, in the turn that began at `begun_s`; False if there is nothing to feed."""
        rows, unfit = self.batch.next_rows()
        for request in unfit:
            sentence = "the request needs more memory than the verifier has"
            self.fail(request, PeerError(ErrorCode.OUT_OF_MEMORY, sentence))
        if not rows:
            return False
        under_way = PassUnderWay(rows, self._forward([row for _, row, _ in rows]), begun_s)
        self._under_way.append(under_way)
        for request, row, drafted in rows:
            if request.stage is not RequestStage.DECODE:
                request.awaits_choices = row.is_scored
            self.counts.verified_nodes += sum(any(map(is_drafter, node.draft_probabilities)) for node in drafted)
        return True

    def _forward(self, rows: Sequence[Row]) -> Awaitable[Pass]:
        return self._runner.forward(rows)

    async def _end_oldest(self) -> None:
        """Wait for the oldest pass under way, and apply its results to its requests."""
        under_way = self._under_way[0]
        try:
            done = await under_way.done
        except Exception as error:
            self._under_way.popleft()
            await self._recover(under_way, error)
        else:
            self._under_way.popleft()
            self._take_results(under_way, done)

    async def _recover(self, failed: PassUnderWay, error: Exception) -> None:
        """Continue after a pass that fed nothing."""
        if isinstance(error, PassAbandoned):
            self.counts.passes_abandoned += 1
            for request, row, _ in failed.rows:
                request.unfeed(row)
            return
        LOG.error("a pass over %d requests failed", len(failed.rows), exc_info=error)
        self.counts.passes_failed += 1
        if len(failed.rows) > 1:
            # Each row in a separate pass shows which one is at fault.
            for one in failed.rows:
                self._under_way.appendleft(PassUnderWay([one], self._forward([one.row]), _now_s()))
                await self._end_oldest()
        elif isinstance(error, OutOfMemory):
            self.fail(failed.rows[0].request, PeerError(ErrorCode.OUT_OF_MEMORY, str(error), RETRY_AFTER_S))
        else:
            self.fail(failed.rows[0].request, PeerError(ErrorCode.INTERNAL, "a forward pass failed"))

    def _take_results(self, under_way: PassUnderWay, done: Pass) -> None:
        """Give the results of a pass to its requests."""
        self.progress.steps += 1
        load = len(under_way.rows)
        self.counts.note_pass(seconds=done.elapsed_s, rows=load)
        for one, result in zip(under_way.rows, done.results, strict=True):
            request = one.request
            if request not in self.requests or one.row.sequence != request.kv.sequence:
                continue
            if result.error is not None:
                self._take_error(request, result.error)
            elif not request.is_cancelled:
                share = self.batch.costs.share(nodes=len(one.drafted), load=load, elapsed_s=done.elapsed_s)
                self._take(request, one.row, result, share)
        self.batch.note_pass(under_way, forward_s=done.elapsed_s, ended_s=_now_s())

    def _take_error(self, request: ServedRequest, error: CosineError) -> None:
        """Handle the error of a request's row."""
        self.fail(request, error)

    def _take(self, request: ServedRequest, row: Row, result: RowResult, share: PassShare) -> None:
        """Give a result to its request, and apply the outcome."""
        try:
            outcome = request.take(row, result, share)
            self.engine.keep(row.sequence, outcome.kept)
            self.engine.prune(row.sequence, outcome.dropped)
        except CosineError as error:  # one request's failure must not end the loop for the others
            log_of(request).exception("a commit failed")
            self.fail(request, PeerError(ErrorCode.INTERNAL, str(error)))
            return
        self.progress.prefill_tokens += outcome.known_tokens
        self.counts.committed_tokens += len(outcome.authors)
        self.counts.accepted_nodes += sum(map(is_drafter, outcome.authors))
        self.counts.home_nodes += outcome.authors.count(HOME_AUTHOR)
        for message in outcome.messages:
            if not request.post(message):
                request.is_cancelled = True
        if outcome.finish is not None:
            self._finish(request, outcome.finish)

    def _finish(self, request: ServedRequest, reason: FinishReason) -> None:
        """End a request, and post its last message."""
        ending = request.end(reason, self.stages)
        self.counts.audited_tokens += ending.audited_tokens
        if ending.message is not None:
            request.post(ending.message)
        log_of(request).info("%s, %s", ending.name, ending.said)
        self._forget(request, ending.name)

    def _forget(self, request: ServedRequest, ending: str) -> None:
        if self.requests.remove(request):
            if self._home is not None and isinstance(request, VerifierRequest):
                self._home.forget(request)
            self.counts.ended[ending] += 1
            self._released.append(request.kv.sequence)
            self._on_end()
            self.wake()


def _now_s() -> float:
    return asyncio.get_running_loop().time()
