"""Waiting for what tells nobody that it has come, and the states of other processes."""

import asyncio
import time
from collections.abc import Callable
from pathlib import Path

PAUSE_S = 0.02


def wait_until(is_so: Callable[[], bool], *, within_s: float = 60.0) -> None:
    """Wait until a condition holds. Fails after `within_s`."""
    until_s = time.monotonic() + within_s
    while not is_so():
        assert time.monotonic() < until_s, f"it was not so within {within_s:g} s"
        time.sleep(PAUSE_S)


async def until(is_so: Callable[[], bool]) -> None:
    """Wait for a condition in an event loop. Raises `TimeoutError` after a minute."""
    async with asyncio.timeout(60):
        while not is_so():  # noqa: ASYNC110  # what is waited for is no event of a loop
            await asyncio.sleep(PAUSE_S)


def state_of(pid: int) -> str:
    """Return the letter of Linux for the state of a process; X for one that is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return "X"
