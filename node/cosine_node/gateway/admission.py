"""How many generations run at once, and how many more may wait for their turn."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager

from cosine_node.gateway.api_errors import unavailable


class Admission:
    """`places` generations run at a time, in the order they came; `max_waiting` more are kept.

    A request of several choices comes in whole, even where that makes more wait than `max_waiting`.
    """

    def __init__(self, *, places: int, max_waiting: int) -> None:
        self.running = 0
        self.waiting = 0
        self._room = places + max_waiting
        self._turns = asyncio.Semaphore(places)

    @contextmanager
    def admitted(self, count: int) -> Iterator["Tickets"]:
        """Tickets for `count` generations. Raises `ApiError` if too many wait already."""
        if self.running + self.waiting >= self._room:
            raise unavailable(f"{self.waiting} generations wait already; try again later.", code="overloaded")
        self.waiting += count
        tickets = Tickets(self, self._turns, count)
        try:
            yield tickets
        finally:
            self.waiting -= tickets.left


class Tickets:
    """What one request may run; `left` are the tickets not used yet."""

    def __init__(self, admission: Admission, turns: asyncio.Semaphore, count: int) -> None:
        self.left = count
        self._admission = admission
        self._turns = turns

    @asynccontextmanager
    async def place(self) -> AsyncIterator[None]:
        """A place to run one generation in, once there is one."""
        async with self._turns:
            self.left -= 1
            self._admission.waiting -= 1
            self._admission.running += 1
            try:
                yield
            finally:
                self._admission.running -= 1
