"""Runs blocking forward passes away from the event loop, times them, and paces them under emulation."""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from dataclasses import dataclass
from functools import partial
from statistics import median
from typing import Any, Final, Protocol, TypeVar

from cosine_node.engine.base import Engine, Row, RowResult
from cosine_node.engine.curve import CostCurve

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Pass:
    """A finished pass: one result a row, and how long it took, pacing included."""

    results: list[RowResult]
    elapsed_s: float


class Runner(Protocol):
    """Runs passes for one engine: one at a time, unless it is over a chain of stages."""

    def forward(self, rows: Sequence[Row]) -> Awaitable[Pass]:
        """One pass. Raises what the engine raises."""

    def abandon(self) -> None:
        """Let the pass under way end early, with `PassAbandoned`: it is not wanted any more."""

    def close(self) -> None: ...


class ThreadRunner:
    """Runs passes in a thread apart from the event loop, so that none stalls heartbeats."""

    def __init__(self, engine: Engine, *, beside: "ThreadRunner | None" = None) -> None:
        """Passes of engines `beside` each other share a thread: see `in_ending_thread`."""
        self._engine = engine
        self._executor: ThreadPoolExecutor
        self._executor = ThreadPoolExecutor(1, "engine") if beside is None else beside._executor

    async def forward(self, rows: Sequence[Row]) -> Pass:
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        results = await loop.run_in_executor(self._executor, self._engine.forward, rows)
        return Pass(results, loop.time() - began_s)

    def abandon(self) -> None:
        self._engine.abandon()

    def close(self) -> None:
        self._executor.shutdown(wait=False, cancel_futures=True)


async def in_ending_thread(work: Callable[..., _T], /, *args: Any, **options: Any) -> _T:
    """Load or measure an engine, away from the event loop. Raises what `work` raises.

    PyTorch's OpenMP keeps a team of workers for each thread that has run a product. Once the teams of a process
    outnumber its cores, workers sleep between products instead of spinning: on two cores a pass over one token of
    SmolLM2 then took 33 ms instead of 20. So a thread that loads ends, and its team with it.
    """
    executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix="loading")
    try:
        run = copy_context().run
        return await asyncio.get_running_loop().run_in_executor(executor, partial(run, work, *args, **options))
    finally:
        executor.shutdown(wait=False)


WINDOW_PASSES: Final = 256
"""Some seconds of work on a fast device, half a minute on a slow one."""
MIN_PASSES: Final = 32
"""Fewer say nothing, for the first passes of every shape take longer."""
MIN_CHANGE: Final = 0.2
"""A smaller part of what is told is no news: a client prefers no verifier for it."""
MIN_INTERVAL_S: Final = 30.0
"""A record is stored by several nodes, each time."""


class PassSpeed:
    """The time of a one-token pass that a node tells, `pass_s`: measured at its start, moved by real passes."""

    def __init__(self, curve: CostCurve, *, now_s: float) -> None:
        self.pass_s = curve.seconds(1)
        self._curve = curve
        self._told_at_s = now_s
        self._ratios: deque[float] = deque(maxlen=WINDOW_PASSES)

    def note(self, *, tokens: int, elapsed_s: float) -> None:
        """Take a finished pass into account, if the curve was measured for as many tokens."""
        expected_s = self._curve.seconds(tokens)
        if expected_s and tokens <= self._curve.points[-1][0]:
            self._ratios.append(elapsed_s / expected_s)

    def forget(self) -> None:
        """Count only the passes from now on: those before were under another load."""
        self._ratios.clear()

    def refresh(self, now_s: float) -> bool:
        """Move `pass_s` to the median of the last passes if it is far from that; True if it has moved."""
        if len(self._ratios) < MIN_PASSES or now_s - self._told_at_s < MIN_INTERVAL_S:
            return False
        moved_s = self._curve.seconds(1) * median(self._ratios)
        # Less than a tenth of a millisecond is lost in every link.
        if abs(moved_s - self.pass_s) < max(MIN_CHANGE * self.pass_s, 1e-4):
            return False
        self.pass_s, self._told_at_s = moved_s, now_s
        return True


class TimedRunner:
    """Lets a `PassSpeed` follow how long passes really take."""

    def __init__(self, runner: Runner, speed: PassSpeed) -> None:
        self._runner = runner
        self._speed = speed

    async def forward(self, rows: Sequence[Row]) -> Pass:
        done = await self._runner.forward(rows)
        self._speed.note(tokens=count_tokens(rows), elapsed_s=done.elapsed_s)
        return done

    def abandon(self) -> None:
        self._runner.abandon()

    def close(self) -> None:
        self._runner.close()


class PacedRunner:
    """Makes every pass last at least as long as a named measured curve says: an *emulated* device.

    `late_passes` took longer in reality than the curve: figures of a run with many are not the emulated device's.
    """

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
    """Tokens fed by a pass."""
    return sum(len(row.tokens) for row in rows)
