"""Virtual time: jumps instead of waiting, orders by time, and tells a deadlock apart from patience."""

import asyncio
import time

import pytest

from cosine_lab.simulation.virtual_loop import Deadlock, run_virtual


def test_an_hour_passes_at_once_and_exactly() -> None:
    async def hour() -> float:
        await asyncio.sleep(3600)
        return asyncio.get_running_loop().time()

    began_s = time.perf_counter()
    assert run_virtual(hour()) == 3600.0
    assert time.perf_counter() - began_s < 5


def test_time_starts_at_zero_and_stands_still_while_tasks_can_run() -> None:
    async def busy() -> float:
        for _ in range(1000):
            await asyncio.sleep(0)
        return asyncio.get_running_loop().time()

    assert run_virtual(busy()) == 0.0


def test_tasks_wake_in_the_order_of_their_timers() -> None:
    async def run() -> list[tuple[float, str]]:
        loop, woken = asyncio.get_running_loop(), []

        async def sleeper(name: str, seconds: float) -> None:
            await asyncio.sleep(seconds)
            woken.append((loop.time(), name))

        await asyncio.gather(sleeper("c", 0.3), sleeper("a", 0.1), sleeper("b", 0.2))
        return woken

    assert [name for _, name in run_virtual(run())] == ["a", "b", "c"]
    assert run_virtual(run()) == run_virtual(run())


def test_a_timeout_fires_at_its_time() -> None:
    async def run() -> float:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(7.5):
                await asyncio.Event().wait()
        return asyncio.get_running_loop().time()

    assert run_virtual(run()) == pytest.approx(7.5)


def test_what_would_hang_is_a_deadlock() -> None:
    async def hang() -> None:
        await asyncio.Event().wait()

    with pytest.raises(Deadlock, match="no timer"):
        run_virtual(hang())


def test_an_error_comes_out_as_it_is() -> None:
    async def fail() -> None:
        await asyncio.sleep(1)
        raise KeyError("lost")

    with pytest.raises(KeyError, match="lost"):
        run_virtual(fail())
