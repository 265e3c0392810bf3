"""Work that stops when its client hangs up or the gateway closes."""

import asyncio
from collections.abc import Coroutine
from enum import Enum
from typing import Any

from starlette.types import Receive


class Ending(Enum):
    """Why work ended."""

    DONE = "done"
    HUNG_UP = "the client hung up"
    CLOSING = "the gateway is closing"


async def until_ended(work: Coroutine[Any, Any, None], *, receive: Receive, closing: asyncio.Event) -> Ending:
    """Run `work` to its end, or cancel it for another ending. Raises what `work` raises."""
    working = asyncio.ensure_future(work)
    hanging_up = asyncio.ensure_future(_disconnect(receive))
    closed = asyncio.ensure_future(closing.wait())
    tasks = (working, hanging_up, closed)
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    if working in done:
        working.result()
        return Ending.DONE
    return Ending.HUNG_UP if hanging_up in done else Ending.CLOSING


async def _disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
