"""Admission: limits on the generations that run and wait at once, shared fairly between API keys."""

import asyncio
from collections import Counter, OrderedDict, deque
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from functools import partial
from typing import Any

from starlette.requests import Request

from cosine_gateway.api_errors import unavailable
from cosine_gateway.body import parse_object, read_body
from cosine_p2p.fair_places import Turns, User

Spend = Callable[[int], None]
"""Counts tokens that a generation has read or written."""

Slots = Callable[[], AbstractAsyncContextManager[Spend]]
"""Waits for a free slot and holds it while one generation of a request runs."""


class Admission:
    """A queue of generations: `max_running` run at a time, `max_waiting` more wait.

    Each key may have at least `max_running` admitted. The next slot goes to the waiting key that has used the
    fewest tokens. With several keys, one key gets at most three quarters of the slots, and a key with nothing
    running gets one at once, which can exceed `max_running` by one for each key. A request for several choices is
    admitted whole, even if that exceeds `max_waiting`.
    """

    def __init__(self, *, max_running: int, max_waiting: int, keys: int = 1) -> None:
        self._max_running = max_running
        self._max_running_each = max(1, max_running - max_running // 4) if keys > 1 else max_running
        self._max_admitted_each = max(max_running, (max_running + max_waiting) // max(1, keys))
        self._admitted: Counter[str] = Counter()
        self._running: Counter[str] = Counter()
        self._turns = Turns()
        self._waiting: OrderedDict[str, deque[asyncio.Future[None]]] = OrderedDict()

    @property
    def running(self) -> int:
        """The number of running generations."""
        return self._running.total()

    @property
    def waiting(self) -> int:
        """The number of generations that are admitted but not running."""
        return self._admitted.total() - self.running

    def check(self, key: str) -> None:
        """Raise `ApiError` if too many generations of a key are admitted already."""
        if self._admitted[key] >= self._max_admitted_each:
            waiting = self._admitted[key] - self._running[key]
            raise unavailable(f"{waiting} generations wait already; try again later.", code="overloaded")

    @contextmanager
    def admitted(self, count: int, *, key: str = "") -> Iterator[Slots]:
        """Admit `count` generations of a key. Raises `ApiError`."""
        self.check(key)
        self._admitted[key] += count
        not_begun = count

        @asynccontextmanager
        async def slot() -> AsyncIterator[Spend]:
            nonlocal not_begun
            free: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.setdefault(key, deque()).append(free)
            self._fill_slots()
            try:
                await free
                not_begun -= 1
                try:
                    yield partial(self._spend, key)
                finally:
                    self._admitted[key] -= 1
            finally:
                # This includes a waiter that was cancelled just after it got the slot.
                if free.done() and not free.cancelled():
                    self._running[key] -= 1
                    self._fill_slots()

        try:
            yield slot
        finally:
            self._admitted[key] -= not_begun

    def _spend(self, key: str, tokens: int) -> None:
        self._turns.note(User(key), tokens, present=map(User, self._admitted))

    def _fill_slots(self) -> None:
        while True:
            for key, line in list(self._waiting.items()):
                while line and line[0].done():
                    line.popleft()
                if not line:
                    del self._waiting[key]
            is_full = self.running >= self._max_running
            most = 1 if is_full else self._max_running_each
            able = [key for key in self._waiting if self._running[key] < most]
            if not able:
                return
            key = min(able, key=lambda key: (self._turns.of(User(key)), self._running[key]))
            self._waiting[key].popleft().set_result(None)
            # Among equal keys, the least recently served comes first.
            self._waiting.move_to_end(key)
            self._running[key] += 1


@asynccontextmanager
async def admitted_object(request: Request, admission: Admission) -> AsyncIterator[dict[str, Any]]:
    """Yield the JSON object of a request while it holds a slot, counted as one token. Raises `ApiError`.

    A full queue is refused before the body is read; the body is parsed in the slot.
    """
    key = request.state.key.hex()
    admission.check(key)
    data = await read_body(request)
    with admission.admitted(1, key=key) as slots:
        async with slots() as spend:
            spend(1)
            yield parse_object(data)
