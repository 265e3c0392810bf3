"""Virtual time: jumps instead of waiting, order by time, and detection of deadlocks."""

import asyncio
import time

import pytest

from cosine_lab.emulation.virtual_loop import Deadlock, run_virtual


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
