"""The operations of a chain that wait at a stage, bounded in bytes."""

import asyncio
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from cosine_node.engine.base import PREFIX, Row
from cosine_node.passes.runner import count_tokens
from cosine_node.stages.operations import BadActivations
from cosine_node.stages.remote_chain import rows_of
from cosine_protocol.errors import MalformedMessage
from cosine_protocol.stage_messages import (
    Activations,
    BookOperation,
    FeedPass,
    KeepPath,
    PruneNodes,
    ReleaseSequence,
    ReusePrefix,
)

WINDOW_S: Final = 30.0
"""As long as a few requests; a record is renewed when its load has changed."""


class BusyShare:
    """The share of the time that a device was at work lately, never at two passes. Times never go back."""

    def __init__(self, *, now_s: float) -> None:
        self._began_s = now_s
        self._passes: deque[tuple[float, float]] = deque()
        self.total_s = 0.0

    def note(self, *, began_s: float, ended_s: float) -> None:
        """Take a finished pass into account."""
        self._passes.append((began_s, ended_s))
        self.total_s += ended_s - began_s
        self._forget(ended_s)

    def share(self, now_s: float) -> float:
        """The share of the last `WINDOW_S` seconds, or of those since the start, 0..1."""
        self._forget(now_s)
        window_s = min(WINDOW_S, now_s - self._began_s)
        if window_s <= 0.0:
            return 0.0
        busy_s = sum(ended_s - max(began_s, now_s - window_s) for began_s, ended_s in self._passes)
        return min(1.0, busy_s / window_s)

    def _forget(self, now_s: float) -> None:
        while self._passes and self._passes[0][1] <= now_s - WINDOW_S:
            self._passes.popleft()


def will_be_dropped(row: Row, parents: Mapping[int, int], later: Sequence[object]) -> bool:
    """True if later operations drop all nodes of a row before any of them becomes part of the prefix.

    Its feed need not be computed then, as PipeInfer (arXiv 2407.11798, section IV.D) cancels runs early. `parents`
    are those of the nodes that the row's sequence has before it, parents before children.
    """
    if not any(getattr(operation, "sequence", None) == row.sequence for operation in later):
        return False
    alive = {**parents, **dict(zip(row.nodes, row.parents, strict=True))}
    for operation in later:
        match operation:
            case ReleaseSequence(sequence) if sequence == row.sequence:
                return True
            case PruneNodes(sequence, nodes) if sequence == row.sequence:
                for name in _with_descendants(alive, nodes):
                    del alive[name]
            case KeepPath(sequence, path) if sequence == row.sequence and path:
                if not alive.keys().isdisjoint(path) and not set(row.nodes).isdisjoint(path):
                    return False
                end = path[-1]
                below = _with_descendants(alive, [end]) - {end}
                alive = {name: PREFIX if alive[name] == end else alive[name] for name in alive if name in below}
        if alive.keys().isdisjoint(row.nodes):
            return True
    return False


def _with_descendants(alive: Mapping[int, int], names: Iterable[int]) -> set[int]:
    found = set(names) & alive.keys()
    for name, parent in alive.items():
        if parent in found:
            found.add(name)
    return found


@dataclass(slots=True)
class QueuedFeed:
    """A feed, and what has come of its activations; None where the stage before has not computed it."""

    number: int
    rows: tuple[Row, ...]
    activations: bytearray | None
    missing_bytes: int


class StageInbox:
    """Queue of one chain at one stage. Whoever fills it waits for `room` first."""

    def __init__(self, *, token_bytes: int, most_bytes: int) -> None:
        """`token_bytes` is the length of a token's activations, 0 at the first stage."""
        self._token_bytes = token_bytes
        self._most_bytes = most_bytes
        self._queued: deque[tuple[BookOperation | QueuedFeed, int]] = deque()
        self._coming: QueuedFeed | None = None
        self._bytes = 0
        self._changed = asyncio.Event()

    @property
    def bytes(self) -> int:
        """About what the waiting operations take."""
        return self._bytes

    @property
    def has_room(self) -> bool:
        """False while enough waits; a feed that is alone in coming is always let in whole."""
        return self._bytes < self._most_bytes or not self._queued

    def later(self) -> list[BookOperation | QueuedFeed]:
        """What waits behind the operation that was taken last."""
        return [operation for operation, _ in self._queued]

    def put(self, message: BookOperation | FeedPass | Activations) -> None:
        """Queue what came. Raises `MalformedMessage`, or `BadActivations` for a wrong length."""
        coming = self._coming
        if isinstance(message, Activations):
            if coming is None or coming.activations is None or not message.data:
                raise MalformedMessage("activations that no feed announced")
            coming.activations += message.data
            coming.missing_bytes -= len(message.data)
            self._bytes += len(message.data)
            if coming.missing_bytes < 0:
                raise BadActivations(f"Activations came with {-coming.missing_bytes} bytes more than announced.")
            if not coming.missing_bytes:
                self._coming = None
                self._push(coming, len(coming.activations) + _size(coming))
            return
        if coming is not None:
            raise MalformedMessage("activations were cut off by another operation")
        if not isinstance(message, FeedPass):
            self._bytes += _size(message)
            self._push(message, _size(message))
            return
        rows, size = rows_of(message), message.activation_bytes
        expected = self._token_bytes * count_tokens(rows)
        if size not in (0, expected):
            raise BadActivations(f"A feed came with {size} bytes of activations, not {expected}.")
        feed = QueuedFeed(message.number, rows, bytearray() if size else None, size)
        self._bytes += _size(feed)
        if feed.missing_bytes:
            self._coming = feed
        else:
            self._push(feed, _size(feed))

    def _push(self, operation: BookOperation | QueuedFeed, size: int) -> None:
        self._queued.append((operation, size))
        self._changed.set()

    async def room(self) -> None:
        """Wait until `has_room`."""
        while not self.has_room:
            self._changed.clear()
            await self._changed.wait()

    async def take(self) -> BookOperation | QueuedFeed:
        """The oldest operation that is there whole."""
        while not self._queued:
            self._changed.clear()
            await self._changed.wait()
        operation, size = self._queued.popleft()
        self._bytes -= size
        self._changed.set()
        return operation


def _size(operation: BookOperation | QueuedFeed) -> int:
    # A whole number in a tuple takes 32 bytes in CPython, and 8 that point to it; an operation besides about what a
    # `FeedPass` with one row does (sys.getsizeof of its parts).
    number_bytes, operation_bytes = 40, 400
    match operation:
        case QueuedFeed():
            return sum(operation_bytes + 3 * number_bytes * len(row.tokens) for row in operation.rows)
        case ReusePrefix(_, numbers) | KeepPath(_, numbers) | PruneNodes(_, numbers):
            return operation_bytes + number_bytes * len(numbers)
    return operation_bytes
