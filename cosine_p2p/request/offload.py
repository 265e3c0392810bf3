"""Threads for work that would block the event loop."""

import asyncio
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol, TypeVar

_T = TypeVar("_T")


class Offload(Protocol):
    """A function that runs blocking work outside the event loop."""

    def __call__(self, work: Callable[[], _T], /) -> Awaitable[_T]:
        """Return the result of the work. Raises what it raises."""


class Threads:
    """An `Offload` that runs work in `count` threads. End it with `close`."""

    def __init__(self, name: str, count: int) -> None:
        self._executor = ThreadPoolExecutor(max_workers=count, thread_name_prefix=name)

    async def __call__(self, work: Callable[[], _T], /) -> _T:
        return await asyncio.get_running_loop().run_in_executor(self._executor, work)

    def close(self) -> None:
        """Start no further work; running work continues."""
        self._executor.shutdown(wait=False, cancel_futures=True)
