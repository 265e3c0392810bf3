"""Patience at the way into a network: not all that starts at once is ready, and a daemon that died comes back."""

import asyncio
import logging
import math
import os
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, Final, TypeVar

from cosine_protocol.errors import PeerLost, UsageError

JOIN_PATIENCE_S: Final = 60.0  # A node that is started anew on a busy machine listens by then.
JOIN_PAUSE_S: Final = 2.0  # Costs those that do not answer nothing, and who waits does not notice it.
PATIENCE_VARIABLE: Final = "COSINE_JOIN_PATIENCE"  # of the environment, in seconds

LOG = logging.getLogger(__name__)
_T = TypeVar("_T")

Note = Callable[[str], None]  # Takes the sentence that says what is waited for.


def join_patience_s() -> float:
    """`JOIN_PATIENCE_S`, or what the environment says. Raises `UsageError`."""
    written = os.environ.get(PATIENCE_VARIABLE)
    try:
        patience_s = JOIN_PATIENCE_S if written is None else float(written)
    except ValueError:
        patience_s = math.nan
    if not 0.0 <= patience_s < math.inf:
        raise UsageError(f"{PATIENCE_VARIABLE} must be seconds, 0 or more, not {written!r}.")
    return patience_s


async def ask_patiently(ask: Callable[[], Awaitable[_T]], *, patience_s: float, note: Note = LOG.warning) -> _T:
    """What `ask` gives, called again for `patience_s` while nobody answers. Raises as the last call."""
    clock = asyncio.get_running_loop().time
    until_s = clock() + patience_s
    while True:
        try:
            return await ask()
        except PeerLost as lost:
            if clock() >= until_s:
                raise
            note(f"Nobody of the network answers yet, asking again ({lost})")
        await asyncio.sleep(JOIN_PAUSE_S)


async def end_all(tasks: Iterable[asyncio.Future[Any]]) -> None:
    """Cancel tasks, and wait until they have ended, however they end."""
    ending = list(tasks)
    for task in ending:
        task.cancel()
    await asyncio.gather(*ending, return_exceptions=True)


async def unless_stopped(work: Awaitable[_T], stop: asyncio.Event) -> _T | None:
    """What `work` gives; None, and it is cancelled, where `stop` is set first. Raises as `work`."""
    working, stopping = asyncio.ensure_future(work), asyncio.ensure_future(stop.wait())
    try:
        await asyncio.wait((working, stopping), return_when=asyncio.FIRST_COMPLETED)
    finally:
        if not working.done():
            working.cancel()
        stopping.cancel()
        await asyncio.gather(working, stopping, return_exceptions=True)
    return None if working.cancelled() else working.result()
