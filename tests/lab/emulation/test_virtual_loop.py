"""Virtual time: jumps instead of waiting, order by time, and detection of deadlocks."""

import asyncio
import time
from collections.abc import Coroutine
from typing import Any

import pytest

from cosine_lab.emulation.virtual_loop import Deadlock, PacedLoop, run_virtual


def test_what_would_hang_is_a_deadlock() -> None:
    async def hang() -> None:
        await asyncio.Event().wait()

    with pytest.raises(Deadlock, match="no timer"):
        run_virtual(hang())


def test_a_thread_takes_no_time_and_its_error_comes_out_as_it_is() -> None:
    """No timer is due before the work of a thread is done, on a machine of any speed."""

    async def run() -> float:
        async with asyncio.timeout(1e-9):
            await asyncio.to_thread(time.sleep, 0.01)
        nothing: dict[str, str] = {}
        with pytest.raises(KeyError, match="lost"):
            await asyncio.to_thread(nothing.__getitem__, "lost")
        return asyncio.get_running_loop().time()

    assert run_virtual(run()) == 0.0


def run_paced(main: Coroutine[Any, Any, Any], **options: Any) -> Any:
    with asyncio.Runner(loop_factory=lambda: PacedLoop(**options)) as runner:
        return runner.run(main)


async def sleep_and_tell() -> list[float]:
    loop = asyncio.get_running_loop()
    times = [loop.time()]
    for _ in range(3):
        await asyncio.sleep(10.0)
        times.append(loop.time())
    return times


def test_a_slow_simulation_does_not_try_to_catch_up() -> None:
    """The real clock leaps ahead at every reading; due timers run at once and in order."""
    leaps = iter(range(0, 10**9, 1000))
    assert run_paced(sleep_and_tell(), speed=1.0, clock=lambda: float(next(leaps))) == pytest.approx(
        [0, 10, 20, 30]
    )
