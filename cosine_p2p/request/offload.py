"""Threads for work that would hold up the event loop."""

import asyncio
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol, TypeVar

_T = TypeVar("_T")


class Offload(Protocol):
    """Runs blocking work away from the event loop."""

    def __call__(self, work: Callable[[], _T], /) -> Awaitable[_T]:
        """Return what the work returns. Raises what it raises."""


class Threads:
    """An `Offload`: runs each piece of work in one of `count` threads. End it with `close`."""

    def __init__(self, name: str, count: int) -> None:
        self._executor = ThreadPoolExecutor(max_workers=count, thread_name_prefix=name)

    async def __call__(self, work: Callable[[], _T], /) -> _T:
        return await asyncio.get_running_loop().run_in_executor(self._executor, work)

    def close(self) -> None:
        """Begin nothing more; what runs goes on."""
        self._executor.shutdown(wait=False, cancel_futures=True)
