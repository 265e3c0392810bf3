"""Admission: as many generations run at once as may, and as many more wait."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager

from cosine_node.gateway.api_errors import unavailable


class Admission:
    """`max_running` generations run at a time, in the order they came; `max_waiting` more are kept.

    A request of several choices comes in whole, even where that makes more wait than `max_waiting`.
    """

    def __init__(self, *, max_running: int, max_waiting: int) -> None:
        self.running = 0
        self.waiting = 0
        self._max_admitted = max_running + max_waiting
        self._slots = asyncio.Semaphore(max_running)

    @contextmanager
    def admitted(self, count: int) -> Iterator["Tickets"]:
        """Tickets for `count` generations. Raises `ApiError` if too many wait already."""
        if self.running + self.waiting >= self._max_admitted:
            raise unavailable(f"{self.waiting} generations wait already; try again later.", code="overloaded")
        self.waiting += count
        tickets = Tickets(self, self._slots, count)
        try:
            yield tickets
        finally:
            self.waiting -= tickets.left


class Tickets:
    """The generations that one request may run; `left` are those not begun yet."""

    def __init__(self, admission: Admission, slots: asyncio.Semaphore, count: int) -> None:
        self.left = count
        self._admission = admission
        self._slots = slots

    @asynccontextmanager
    async def slot(self) -> AsyncIterator[None]:
        """A slot to run one generation in, once one is free."""
        async with self._slots:
            self.left -= 1
            self._admission.waiting -= 1
            self._admission.running += 1
            try:
                yield
            finally:
                self._admission.running -= 1
