"""The queue of a chain's operations at a stage, bounded in bytes, and fair turns at the event loop."""

import asyncio
from collections import deque
from dataclasses import dataclass
from typing import Final

from cosine_engine.base import Row
from cosine_engine.kv_pool import PAGE_TOKENS
from cosine_engine.paged import PagedEngine
from cosine_node.passes.runner import count_tokens
from cosine_node.stages.frames import BadActivations, rows_of
from cosine_protocol.errors import MalformedMessage
from cosine_protocol.stage import (
    Activations,
    BookOperation,
    FeedPass,
    KeepPath,
    OpenSequence,
    PruneNodes,
    ReleaseSequence,
    ReserveRoom,
    ReusePrefix,
)


@dataclass(slots=True)
class QueuedFeed:
    """A feed, and its activations so far; None at the first stage.

    They began to arrive at `began_s` and took `came_s`; None if the stage was not ready to read them.
    """

    number: int
    rows: tuple[Row, ...]
    activations: bytearray | None
    missing_bytes: int
    began_s: float | None = None
    came_s: float | None = None


class StageInbox:
    """The queue of one chain at one stage. Wait for `room` before `put`."""

    def __init__(self, *, token_bytes: int, most_bytes: int) -> None:
        """`token_bytes` is the size of a token's activations, 0 at the first stage."""
        self._token_bytes = token_bytes
        self._most_bytes = most_bytes
        self._queued: deque[tuple[BookOperation | QueuedFeed, int]] = deque()
        self._coming: QueuedFeed | None = None
        self.bytes = 0
        """The approximate size of the waiting operations."""
        self._changed = asyncio.Event()

    @property
    def has_room(self) -> bool:
        """False while the queue is full; a single incoming feed is always read whole."""
        return self.bytes < self._most_bytes or not self._queued

    def put(self, message: BookOperation | FeedPass | Activations, *, now_s: float = 0.0) -> None:
        """Queue a message. Raises `MalformedMessage`, or `BadActivations` for a wrong length."""
        coming = self._coming
        if isinstance(message, Activations):
            if coming is None or coming.activations is None or not message.data:
                raise MalformedMessage("activations that no feed announced")
            coming.activations += message.data
            coming.missing_bytes -= len(message.data)
            self.bytes += len(message.data)
            if coming.missing_bytes < 0:
                raise BadActivations(f"Activations came with {-coming.missing_bytes} bytes more than announced.")
            if not coming.missing_bytes:
                self._coming = None
                coming.came_s = None if coming.began_s is None else now_s - coming.began_s
                self._push(coming, len(coming.activations) + _size(coming))
            return
        if coming is not None:
            raise MalformedMessage("activations were cut off by another operation")
        if not isinstance(message, FeedPass):
            if _changes_nothing(message):
                raise MalformedMessage(f"a {type(message).__name__} that changes nothing")
            self.bytes += _size(message)
            self._push(message, _size(message))
            return
        rows, size = rows_of(message), message.activation_bytes
        expected = self._token_bytes * count_tokens(rows)
        if size != expected:
            raise BadActivations(f"A feed came with {size} bytes of activations, not {expected}.")
        feed = QueuedFeed(message.number, rows, bytearray() if size else None, size)
        self.bytes += _size(feed)
        if feed.missing_bytes:
            self._coming, feed.began_s = feed, now_s
        else:
            self._push(feed, _size(feed))

    def _push(self, operation: BookOperation | QueuedFeed, size: int) -> None:
        self._queued.append((operation, size))
        self._changed.set()

    async def room(self) -> None:
        """Wait until `has_room`."""
        while not self.has_room:
            if self._coming is not None:
                self._coming.began_s = None
            self._changed.clear()
            await self._changed.wait()

    async def take(self) -> BookOperation | QueuedFeed:
        """Wait for and remove the oldest complete operation."""
        while not self._queued:
            self._changed.clear()
            await self._changed.wait()
        operation, size = self._queued.popleft()
        self.bytes -= size
        self._changed.set()
        return operation


def _changes_nothing(operation: BookOperation) -> bool:
    """True for an operation without effect, which no head sends."""
    match operation:
        case KeepPath(_, names) | PruneNodes(_, names):
            return not names
        case ReusePrefix(_, tokens):
            return len(tokens) < 2
        case ReserveRoom(_, tokens):
            return not tokens
    return False


def _size(operation: BookOperation | QueuedFeed) -> int:
    # An integer in a tuple takes 32 bytes in CPython plus 8 for the pointer; an operation about as much as a
    # `FeedPass` with one row (sys.getsizeof of its parts).
    number_bytes, operation_bytes = 40, 400
    match operation:
        case QueuedFeed():
            return sum(operation_bytes + 3 * number_bytes * len(row.tokens) for row in operation.rows)
        case ReusePrefix(_, numbers) | KeepPath(_, numbers) | PruneNodes(_, numbers):
            return operation_bytes + number_bytes * len(numbers)
    return operation_bytes


TURN_STEPS: Final = 1_000
"""0.1 to 0.3 ms of Python, a few operations with the nodes of a usual tree. With 64 working chains each waits 6 to
19 ms for its turn; with far fewer steps each operation pays for a turn of the loop."""
OPERATION_STEPS: Final = 20
"""Fixed steps of any operation: to take, check and pass it on takes some 20 microseconds."""


class Turn:
    """One chain's share of the event loop: after `TURN_STEPS` it yields to the others.

    Operations are never divided; a long one yields for as many turns as it took.
    """

    def __init__(self) -> None:
        self._left = TURN_STEPS

    async def spend(self, steps: int) -> None:
        """Count steps that were done; return when it is this chain's turn again."""
        self._left -= steps
        while self._left <= 0:
            self._left += TURN_STEPS
            await asyncio.sleep(0)


def steps_of(operation: BookOperation, books: PagedEngine) -> int:
    """The approximate number of names, tokens and pages to examine. Raises `LocalProtocolError`."""
    match operation:
        case OpenSequence():
            looked_at = 0
        case ReserveRoom(_, tokens):
            looked_at = tokens // PAGE_TOKENS
        case ReusePrefix(_, tokens):
            looked_at = len(tokens)
        case KeepPath(sequence, names) | PruneNodes(sequence, names):
            looked_at = len(names) + len(books.tree(sequence).nodes)
        case ReleaseSequence(sequence):
            looked_at = books.tree(sequence).live_tokens
    return OPERATION_STEPS + looked_at
