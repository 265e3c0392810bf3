"""The passes of all chains of a stage, in the engine's thread: counted, emulated, and limited to a share."""

import asyncio
import time
from collections import deque
from collections.abc import Callable
from typing import Final, TypeVar

from cosine_node.passes.counts import StageCounts
from cosine_p2p.request.offload import Offload
from cosine_p2p.transport.channel import StepCounts

WINDOW_S: Final = 30.0
"""The time of a few requests; a record is renewed when its load has changed."""
_T = TypeVar("_T")


class BusyShare:
    """The share of recent time in which a device computed, one pass at a time. Times never go back."""

    def __init__(self, *, now_s: float) -> None:
        self._began_s = now_s
        self._passes: deque[tuple[float, float]] = deque()
        self.total_s = 0.0

    def note(self, *, began_s: float, ended_s: float) -> None:
        """Record a finished pass."""
        self._passes.append((began_s, ended_s))
        self.total_s += ended_s - began_s
        self._forget(ended_s)

    def share(self, now_s: float) -> float:
        """The share of the last `WINDOW_S` seconds, or of the time since the start, 0..1."""
        self._forget(now_s)
        window_s = min(WINDOW_S, now_s - self._began_s)
        if window_s <= 0.0:
            return 0.0
        busy_s = sum(ended_s - max(began_s, now_s - window_s) for began_s, ended_s in self._passes)
        return min(1.0, busy_s / window_s)

    def _forget(self, now_s: float) -> None:
        while self._passes and self._passes[0][1] <= now_s - WINDOW_S:
            self._passes.popleft()


class StagePasses:
    """Runs the passes of a stage in the engine's thread, which is `offload`, each in `share` of the time.

    `least_s` returns the minimum duration of a pass by its tokens, for an emulated device; `note_pass` takes tokens
    and seconds of each pass.
    """

    def __init__(
        self,
        offload: Offload,
        *,
        least_s: Callable[[int], float] | None = None,
        share: float = 1.0,
        note_pass: Callable[[int, float], object] = lambda tokens, elapsed_s: None,
    ) -> None:
        self._offload = offload
        self._least_s = least_s
        self._share = share
        self._note_pass = note_pass
        self.busy = BusyShare(now_s=time.monotonic())
        self.progress = StepCounts()
        self.counts = StageCounts()

    async def forward(self, work: Callable[[], _T], *, tokens: int, rows: int) -> _T:
        """Run and count one pass. Raises the errors of `work`."""

        def timed() -> tuple[_T, float, float]:
            # In the engine's thread, so that waiting for it does not count.
            began_s = time.monotonic()
            found = work()
            time.sleep((time.monotonic() - began_s) * (1.0 / self._share - 1.0))
            if self._least_s is not None:
                time.sleep(max(0.0, began_s + self._least_s(tokens) - time.monotonic()))
            return found, began_s, time.monotonic()

        found, began_s, ended_s = await self.run(timed)
        self.progress.steps += 1
        self.busy.note(began_s=began_s, ended_s=ended_s)
        self.counts.fed_tokens += tokens
        self.counts.note_pass(seconds=ended_s - began_s, rows=rows)
        self._note_pass(tokens, ended_s - began_s)
        return found

    async def run(self, work: Callable[[], _T]) -> _T:
        """Run work in the engine's thread; wait for its end even if the chain ends meanwhile."""
        running = asyncio.ensure_future(self._offload(work))
        try:
            return await asyncio.shield(running)
        finally:
            await asyncio.gather(running, return_exceptions=True)
