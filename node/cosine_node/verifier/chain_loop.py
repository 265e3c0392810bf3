"""The step loop of a head: several passes under way over stages, which may be lost.

A pass travels through all stages, so the next one begins before it returns, as soon as `ChainPace` allows. Passes
end in the order of their start. Known tokens that need no choice count as fed once their pass has begun, and nodes
are charged then. The verifier's own drafter drafts all the time, concurrently with the passes.

If the chain is lost, or its last stage returns a row without tokens, all requests resume over another chain from
their committed tokens. Without another one they fail.
"""

import asyncio
import logging
import math
from collections.abc import Awaitable, Sequence
from contextlib import suppress
from typing import Any

from cosine_engine.base import Row, RowResult
from cosine_node.chains.chain import StageChain
from cosine_node.chains.search import NoChain
from cosine_node.passes.runner import Pass
from cosine_node.stages.frames import ChainLost
from cosine_node.verifier.audited_stream import AuditedStream
from cosine_node.verifier.batch import PassBatch, PassUnderWay
from cosine_node.verifier.home_drafter import HomeDrafter
from cosine_node.verifier.intake import cannot_judge
from cosine_node.verifier.request import VerifierRequest
from cosine_node.verifier.served_request import PassShare, RequestStage, ServedRequest
from cosine_node.verifier.step_loop import StepLoop
from cosine_protocol.errors import CosineError, ErrorCode, PeerError
from cosine_protocol.stream import FinishReason

LOG = logging.getLogger(__name__)


class ChainLoop(StepLoop):
    """Runs the passes of a batch over one chain of stages after the other."""

    def __init__(self, batch: PassBatch, chain: StageChain, **options: Any) -> None:
        """`options` are those of a `StepLoop`."""
        super().__init__(batch, **options)
        self._chain = chain
        self._pace = chain.pace
        self._is_doubted = False
        self._drafting: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._drafting.set_result(None)

    @property
    def stages(self) -> Sequence[str]:
        return self._chain.stages

    @property
    def why_not_judge(self) -> str | None:
        return self._chain.why_not_judge

    async def turn(self) -> None:
        """Begin the next pass if the stages can take it, and end those that have returned, or wait."""
        begun_s = _now_s()
        self._release_ended()
        if self._home is not None and self._drafting.done():
            self._drafting = asyncio.ensure_future(self._draft_ahead(self._home))
        wait_s = self._pace.wait_s(begun_s, under_way=len(self._under_way))
        has_begun = wait_s <= 0 and self._begin(begun_s=begun_s)
        if self._has_returned:
            while self._has_returned:
                await self._end_oldest()
        elif not has_begun:
            await self._wait_for_turn(wait_s)

    def close(self) -> None:
        self._drafting.cancel()
        for under_way in self._under_way:
            asyncio.ensure_future(under_way.done).cancel()

    @property
    def _has_returned(self) -> bool:
        """True if the oldest pass under way has ended."""
        done = self._under_way[0].done if self._under_way else None
        return isinstance(done, asyncio.Future) and done.done()

    async def _draft_ahead(self, home: HomeDrafter) -> None:
        """Let the verifier's own drafter run one pass during those over stages."""
        if await home.draft_ahead(self.batch.draftable):
            self._work.set()

    async def _wait_for_turn(self, seconds: float) -> None:
        """Wait for work; the next pass may begin in `seconds`."""
        if not self._under_way:
            await self._wait()
            return
        self._note_idle()
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds if 0 < seconds < math.inf else None):
                await self._work.wait()

    def _begin(self, *, begun_s: float) -> bool:
        if not super()._begin(begun_s=begun_s):
            return False
        under_way, curve = self._under_way[-1], self.batch.costs.curve
        self._pace.note_begun(_now_s(), tokens=under_way.tokens)
        are_several = len(self.requests) > 1
        known = self.batch.costs.share(nodes=0, load=len(under_way.rows), elapsed_s=0.0)
        for request, row, drafted in under_way.rows:
            if not row.is_scored:
                super()._take(request, row, RowResult(()), known)
            elif isinstance(request, VerifierRequest) and request.stage is RequestStage.DECODE and are_several:
                spent_s = curve.seconds(under_way.tokens) - curve.seconds(under_way.tokens - len(drafted))
                request.account.charge(spent_s=spent_s, tokens=0, plain_pass_s=curve.seconds(1))
        return True

    def _forward(self, rows: Sequence[Row]) -> Awaitable[Pass]:
        done = asyncio.ensure_future(super()._forward(rows))
        done.add_done_callback(self._note_returned)
        return done

    def _note_returned(self, done: "asyncio.Future[Pass]") -> None:
        self._work.set()
        # Retrieve the error, since a loop that has ended does not.
        _ = done.cancelled() or done.exception()

    async def _end_oldest(self) -> None:
        await super()._end_oldest()
        if self._is_doubted:
            self._is_doubted = False
            await self._go_on_elsewhere()

    async def _recover(self, failed: PassUnderWay, error: Exception) -> None:
        if not isinstance(error, ChainLost):
            await super()._recover(failed, error)
            return
        LOG.warning("%s", error)
        self.counts.passes_failed += 1
        await self._go_on_elsewhere()

    async def _go_on_elsewhere(self) -> None:
        """Resume all requests over another chain from their committed tokens; fail them if there is none."""
        lost = [under_way.done for under_way in self._under_way]
        self._under_way.clear()
        await asyncio.gather(*lost, return_exceptions=True)
        try:
            await self._chain.find()
        except NoChain as error:
            for request in self.requests:
                self.fail(request, PeerError(ErrorCode.NO_CHAIN, str(error)))
            return
        for request in self.requests:
            if request.request.sampling.constraint is not None and self.engine.grammars is None:
                sentence = "the stages that are left apply no constraints"
                self.fail(request, PeerError(ErrorCode.UNSUPPORTED, sentence))
        # The sequences of the lost chain are gone with it.
        self._released.clear()
        for request in self.requests:
            self.batch.begin_anew(request)

    def _take_results(self, under_way: PassUnderWay, done: Pass) -> None:
        self._pace.note_ended(_now_s(), begun_s=under_way.begun_s, tokens=under_way.tokens)
        super()._take_results(under_way, done)

    def _take(self, request: ServedRequest, row: Row, result: RowResult, share: PassShare) -> None:
        # Known tokens were taken when their pass began.
        if row.is_scored:
            super()._take(request, row, result, share)

    def _take_error(self, request: ServedRequest, error: CosineError) -> None:
        # Another last stage may give tokens for it.
        self._is_doubted = self._is_doubted or self._chain.doubt()
        if not self._is_doubted:
            super()._take_error(request, error)

    def _finish(self, request: ServedRequest, reason: FinishReason) -> None:
        why_not = self.why_not_judge if isinstance(request, AuditedStream) else None
        if why_not is not None and reason is not FinishReason.CANCELLED:
            self.fail(request, cannot_judge(why_not))
        else:
            super()._finish(request, reason)


def _now_s() -> float:
    return asyncio.get_running_loop().time()
