"""Virtual time that keeps step with real time, and gives up catching up when it cannot."""

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest

from cosine_lab.simulation.paced_loop import PacedLoop


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


def test_time_goes_in_exact_steps_however_fast() -> None:
    assert run_paced(sleep_and_tell(), speed=1e5) == pytest.approx([0, 10, 20, 30])


def test_a_slow_simulation_does_not_try_to_catch_up() -> None:
    """The real clock leaps ahead at every look; what is due comes at once and in order."""
    leaps = iter(range(0, 10**9, 1000))
    assert run_paced(sleep_and_tell(), speed=1.0, clock=lambda: float(next(leaps))) == pytest.approx(
        [0, 10, 20, 30]
    )


def test_another_thread_wakes_a_loop_that_waits_for_nothing() -> None:
    async def main() -> str:
        loop = asyncio.get_running_loop()
        told: asyncio.Future[str] = loop.create_future()
        await asyncio.to_thread(loop.call_soon_threadsafe, told.set_result, "awake")
        return await told

    assert run_paced(main(), speed=1.0) == "awake"
