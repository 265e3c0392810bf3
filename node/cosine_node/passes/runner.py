"""Runs blocking forward passes in a thread, times them, and paces them for emulation."""

import asyncio
import os
import sys
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from dataclasses import dataclass
from functools import partial
from statistics import median
from threading import get_native_id
from time import perf_counter
from typing import Any, Final, Protocol, TypeVar

from cosine_engine.base import Engine, Row, RowResult
from cosine_engine.curve import CostCurve
from cosine_engine.models.unloading import WaitForWork

_T = TypeVar("_T")
NICENESS: Final = 10
"""Priority of what gives way to the rest of the machine: a busy processor takes nine tenths from it."""


@dataclass(frozen=True, slots=True)
class Pass:
    """A finished pass: one result per row, and its duration including pacing."""

    results: list[RowResult]
    elapsed_s: float


class Runner(Protocol):
    """Runs the passes of one engine, one at a time unless it is a chain of stages."""

    def forward(self, rows: Sequence[Row]) -> Awaitable[Pass]:
        """Run a pass. Raises the errors of the engine."""

    def abandon(self) -> None:
        """End the current pass early, with `PassAbandoned`."""

    def close(self) -> None: ...


class ThreadRunner:
    """Runs passes in a thread, so that heartbeats continue."""

    def __init__(
        self,
        engine: Engine,
        *,
        beside: "ThreadRunner | None" = None,
        gives_way: bool = False,
        share: float = 1.0,
    ) -> None:
        """Shares the thread of `beside` (see `in_ending_thread`); one that `gives_way` has a low priority.

        Passes take `share` of the time: a pause after each belongs to its duration.
        """
        self._engine = engine
        self._share = share
        self._executor: ThreadPoolExecutor
        initializer = _give_way if gives_way else None
        self._executor = ThreadPoolExecutor(1, "engine", initializer) if beside is None else beside._executor

    async def forward(self, rows: Sequence[Row]) -> Pass:
        # The clock of uvloop's loops has whole milliseconds.
        began_s = perf_counter()
        results = await asyncio.get_running_loop().run_in_executor(self._executor, self._engine.forward, rows)
        elapsed_s = (perf_counter() - began_s) / self._share
        if self._share < 1.0:
            await asyncio.sleep((1.0 - self._share) * elapsed_s)
        return Pass(results, elapsed_s)

    def abandon(self) -> None:
        self._engine.abandon()

    def close(self) -> None:
        self._executor.shutdown(wait=False, cancel_futures=True)


def _give_way() -> None:
    # Only Linux has a priority for each thread.
    if sys.platform == "linux":
        os.setpriority(os.PRIO_PROCESS, get_native_id(), NICENESS)


async def in_ending_thread(work: Callable[..., _T], /, *args: Any, **options: Any) -> _T:
    """Load or measure an engine in a thread that ends afterwards. Raises the errors of `work`.

    PyTorch's OpenMP keeps a team of workers for each thread that has multiplied matrices. With more workers than
    cores they sleep between products instead of spinning: on two cores a pass over one token of SmolLM2 then took
    33 ms instead of 20.
    """
    executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix="loading")
    try:
        run = copy_context().run
        return await asyncio.get_running_loop().run_in_executor(executor, partial(run, work, *args, **options))
    finally:
        executor.shutdown(wait=False)


WINDOW_PASSES: Final = 256
"""Some seconds of passes on a fast device, half a minute on a slow one."""
MIN_PASSES: Final = 32
"""The first passes of each shape take longer."""
MIN_CHANGE: Final = 0.2
"""Minimum relative change to announce: clients ignore smaller differences."""
MIN_INTERVAL_S: Final = 30.0
"""Each new record is stored by several nodes."""


class PassSpeed:
    """The announced time of a one-token pass, `pass_s`: measured at the start, corrected by real passes."""

    def __init__(self, curve: CostCurve, *, now_s: float) -> None:
        self.pass_s = curve.seconds(1)
        self._curve = curve
        self._told_at_s = now_s
        self._ratios: deque[float] = deque(maxlen=WINDOW_PASSES)

    def note(self, tokens: int, elapsed_s: float) -> None:
        """Note a finished pass, if the curve was measured for as many tokens."""
        expected_s = self._curve.seconds(tokens)
        if expected_s and tokens <= self._curve.points[-1][0]:
            self._ratios.append(elapsed_s / expected_s)

    def forget(self) -> None:
        """Forget earlier passes, which were under another load."""
        self._ratios.clear()

    def refresh(self, now_s: float) -> bool:
        """Set `pass_s` to the median of the last passes if it differs much. Returns True if it has changed."""
        if len(self._ratios) < MIN_PASSES or now_s - self._told_at_s < MIN_INTERVAL_S:
            return False
        moved_s = self._curve.seconds(1) * median(self._ratios)
        # Less than a tenth of a millisecond is negligible on any link.
        if abs(moved_s - self.pass_s) < max(MIN_CHANGE * self.pass_s, 1e-4):
            return False
        self.pass_s, self._told_at_s = moved_s, now_s
        return True


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedEngine:
    """An engine as a service uses it.

    runner: Runs its passes.
    curve: Their cost; over stages that of the slowest stage, which limits their rate.
    speed: The announced time of a pass over one token. None: the curve's.
    wait_for_work: Waits until there is work and the engine may be used.
    """

    engine: Engine
    runner: Runner
    curve: CostCurve
    speed: PassSpeed | None = None
    wait_for_work: WaitForWork = asyncio.Event.wait

    @property
    def pass_s(self) -> float:
        """The time of a one-token pass that clients are told."""
        return self.curve.seconds(1) if self.speed is None else self.speed.pass_s


class TimedRunner:
    """Notes the time of each pass in a node's announced speed."""

    def __init__(self, runner: Runner, speed: PassSpeed) -> None:
        self._runner = runner
        self._speed = speed

    def forward(self, rows: Sequence[Row]) -> Awaitable[Pass]:
        # Passes over a chain begin at once.
        return self._timed(rows, self._runner.forward(rows))

    async def _timed(self, rows: Sequence[Row], passing: Awaitable[Pass]) -> Pass:
        done = await passing
        self._speed.note(count_tokens(rows), done.elapsed_s)
        return done

    def abandon(self) -> None:
        self._runner.abandon()

    def close(self) -> None:
        self._runner.close()


class PacedRunner:
    """Emulates a device: each pass takes at least as long as in a curve. `late_passes` took longer."""

    def __init__(self, runner: Runner, curve: CostCurve) -> None:
        self._runner = runner
        self._curve = curve
        self.late_passes = 0

    async def forward(self, rows: Sequence[Row]) -> Pass:
        loop = asyncio.get_running_loop()
        due_s = loop.time() + self._curve.seconds(count_tokens(rows))
        done = await self._runner.forward(rows)
        left_s = due_s - loop.time()
        self.late_passes += left_s < 0
        await asyncio.sleep(max(0.0, left_s))
        return Pass(done.results, done.elapsed_s + max(0.0, loop.time() - due_s + left_s))

    def abandon(self) -> None:
        self._runner.abandon()

    def close(self) -> None:
        self._runner.close()


def count_tokens(rows: Sequence[Row]) -> int:
    return sum(len(row.tokens) for row in rows)
