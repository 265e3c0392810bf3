"""Waiting for a network that is not ready yet, and ending tasks."""

import asyncio
import logging
import math
import os
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, Final, TypeVar

from cosine_protocol.errors import PeerLost, UsageError

JOIN_PATIENCE_S: Final = 60.0  # A node that is restarted on a busy machine listens after this time.
JOIN_PAUSE_S: Final = 2.0  # Short for a user who waits, and no load for peers.
PATIENCE_VARIABLE: Final = "COSINE_JOIN_PATIENCE"  # The name of an environment variable, in seconds.

LOG = logging.getLogger(__name__)
_T = TypeVar("_T")

Note = Callable[[str], None]  # Reports to the user what is waited for.


def join_patience_s() -> float:
    """The value of the environment variable, or `JOIN_PATIENCE_S`. Raises `UsageError`."""
    written = os.environ.get(PATIENCE_VARIABLE)
    try:
        patience_s = JOIN_PATIENCE_S if written is None else float(written)
    except ValueError:
        patience_s = math.nan
    if not 0.0 <= patience_s < math.inf:
        raise UsageError(f"{PATIENCE_VARIABLE} must be seconds, 0 or more, not {written!r}.")
    return patience_s


async def ask_patiently(ask: Callable[[], Awaitable[_T]], *, patience_s: float, note: Note = LOG.warning) -> _T:
    """Return the result of `ask`, which is repeated for `patience_s` while it raises `PeerLost`."""
    clock = asyncio.get_running_loop().time
    until_s = clock() + patience_s
    while True:
        try:
            return await ask()
        except PeerLost as lost:
            if clock() >= until_s:
                raise
            note(f"No node of the network answers yet, asking again ({lost})")
        await asyncio.sleep(JOIN_PAUSE_S)


async def end_all(tasks: Iterable[asyncio.Future[Any]]) -> None:
    """Cancel tasks, and wait until they have ended, with or without an error."""
    ending = list(tasks)
    for task in ending:
        task.cancel()
    await asyncio.gather(*ending, return_exceptions=True)


async def unless_stopped(work: Awaitable[_T], stop: asyncio.Event) -> _T | None:
    """Return the result of `work`, or cancel it and return None if `stop` is set first. Raises as `work`."""
    working, stopping = asyncio.ensure_future(work), asyncio.ensure_future(stop.wait())
    try:
        await asyncio.wait((working, stopping), return_when=asyncio.FIRST_COMPLETED)
    finally:
        if not working.done():
            working.cancel()
        stopping.cancel()
        await asyncio.gather(working, stopping, return_exceptions=True)
    return None if working.cancelled() else working.result()
