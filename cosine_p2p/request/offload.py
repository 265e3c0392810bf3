"""Threads for work that would hold up the event loop."""

import asyncio
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor

Offload = Callable[[Callable[[], None]], Awaitable[None]]
"""Runs a blocking check away from the event loop."""


class Threads:
    """An `Offload`: runs each piece of work in one of `count` threads. End it with `close`."""

    def __init__(self, name: str, count: int) -> None:
        self._executor = ThreadPoolExecutor(max_workers=count, thread_name_prefix=name)

    async def __call__(self, work: Callable[[], None]) -> None:
        """Return when the work is done. Raises what it raises."""
        await asyncio.get_running_loop().run_in_executor(self._executor, work)

    def close(self) -> None:
        """Begin nothing more; what runs goes on, and nobody waits for it."""
        self._executor.shutdown(wait=False, cancel_futures=True)
