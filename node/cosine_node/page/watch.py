"""Polls a swarm while clients watch it, and sends each change to all of them."""

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Any, Final

from cosine_node.page.swarm_facts import changes

WATCH_EVERY_S: Final = 2.0
"""A compromise between freshness and the load of nodes, as in `cosine-node status --watch`."""
MAX_WATCHERS: Final = 64
"""Bounds the open connections of a gateway."""

LOG = logging.getLogger(__name__)

Json = dict[str, Any]


class SwarmWatch:
    """Polls the state of a swarm by `look` while there are watchers, one call at a time.

    `rest` is called after the last watcher leaves.
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
        """True if no further watcher is allowed."""
        return len(self._watchers) >= MAX_WATCHERS

    async def now(self) -> Json:
        """Return the current state, or the latest one if there are watchers."""
        if self._watchers and self._state is not None:
            return self._state
        try:
            return await self._look_once()
        finally:
            await self._rest_unless_watched()

    async def watch(self) -> AsyncGenerator[tuple[str, Json], None]:
        """Yield `("swarm", state)`, then `("change", changes)`, until the generator is closed."""
        inbox: asyncio.Queue[Json] = asyncio.Queue()
        self._watchers.add(inbox)
        try:
            state = self._state or await self._look_once()
            if self._task is None:
                self._task = asyncio.ensure_future(self._run())
            yield "swarm", state
            while True:
                seen = await inbox.get()
                # A slow reader skips to the latest state.
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
