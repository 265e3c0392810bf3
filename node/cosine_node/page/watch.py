"""A swarm while somebody watches it: looked at every few seconds, each change told to all who watch."""

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Any, Final

from cosine_node.page.swarm_facts import changes

WATCH_EVERY_S: Final = 2.0
"""Often enough to see a node leave, and little work for a node: as `cosine-node status --watch`."""
MAX_WATCHERS: Final = 64
"""Bounds the open connections of a gateway that many look at."""

LOG = logging.getLogger(__name__)

Json = dict[str, Any]


class SwarmWatch:
    """Calls `look`, which tells a swarm as `swarm_facts` does, while anybody watches, and never twice at a time.

    `rest` is called once nobody does.
    """

    def __init__(
        self,
        look: Callable[[], Awaitable[Json]],
        *,
        rest: Callable[[], Awaitable[None]],
        every_s: float = WATCH_EVERY_S,
    ) -> None:
        self._look = look
        self._rest = rest
        self._every_s = every_s
        self._state: Json | None = None
        self._watchers: set[asyncio.Queue[Json]] = set()
        self._task: asyncio.Task[None] | None = None
        self._looking = asyncio.Lock()

    @property
    def is_full(self) -> bool:
        """True if nobody else may watch."""
        return len(self._watchers) >= MAX_WATCHERS

    async def now(self) -> Json:
        """The swarm as it is now, or as it was seen last while somebody watches."""
        if self._watchers and self._state is not None:
            return self._state
        try:
            return await self._look_once()
        finally:
            await self._rest_unless_watched()

    async def watch(self) -> AsyncGenerator[tuple[str, Json], None]:
        """First `("swarm", all of it)`, then `("change", changes)` as they come, until the generator is closed."""
        inbox: asyncio.Queue[Json] = asyncio.Queue()
        self._watchers.add(inbox)
        try:
            state = self._state or await self._look_once()
            if self._task is None:
                self._task = asyncio.ensure_future(self._run())
            yield "swarm", state
            while True:
                seen = await inbox.get()
                # Who reads slowly is told of the last of what has come meanwhile.
                while not inbox.empty():
                    seen = inbox.get_nowait()
                told, state = changes(state, seen), seen
                yield "change", told
        finally:
            self._watchers.discard(inbox)
            await self._rest_unless_watched()

    async def _rest_unless_watched(self) -> None:
        if self._watchers:
            return
        task, self._task, self._state = self._task, None, None
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        async with self._looking:
            await self._rest()

    async def _look_once(self) -> Json:
        async with self._looking:
            return await self._look()

    async def _run(self) -> None:
        while True:
            try:
                self._state = await self._look_once()
            except Exception:
                LOG.exception("a look at the swarm failed")
            else:
                for inbox in self._watchers:
                    inbox.put_nowait(self._state)
            await asyncio.sleep(self._every_s)
