"""A chain that a head has set up at a stage: it reads operations, applies them in order, and forwards them.

Theory of operation
-------------------
Operations come from the head to the first stage, and from there from stage to stage. Reading fills a queue that is
bounded in bytes (`StageInbox`); while it is full nothing more is read, and the sender waits. One task applies the
operations to the chain's pages and trees, runs passes in the engine's thread, and sends both on before it takes the
next operation. The last stage answers passes to the head. Every stage reports to the head when it has forwarded a
pass (`Passed`), and answers its probes (`proof`).

Chains share the event loop by steps (`Turn`), so that thousands of small operations of one chain delay no other. A
chain without passes for a while is idle; the stage may give its room to another head.
"""

import asyncio
import logging
import math
from collections import deque
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from cosine_engine.base import OutOfMemory, OutOfPages, Row, RowResult
from cosine_engine.constraints.grammars import Grammars
from cosine_engine.kv_pool import PAGE_TOKENS
from cosine_engine.paged import PagedEngine
from cosine_node.passes.runner import count_tokens
from cosine_node.stages.frames import BadActivations, answer_of, apply_to_books, feed_messages, rows_of
from cosine_node.stages.passes import StagePasses
from cosine_node.stages.proof import ComputedFeed, ComputedFeeds, TooManyProbes, project
from cosine_p2p.transport.channel import Channel
from cosine_p2p.transport.patience import end_all
from cosine_protocol.codec import Message
from cosine_protocol.errors import (
    ErrorCode,
    LocalProtocolError,
    MalformedMessage,
    PeerError,
    PeerLost,
    RemoteProtocolError,
)
from cosine_protocol.request import Constraint
from cosine_protocol.stage import (
    MAX_NAMED_NODES,
    TIMES,
    Activations,
    BookOperation,
    FeedPart,
    FeedPass,
    Join,
    Joined,
    KeepPath,
    LayerRange,
    OpenSequence,
    PartTrace,
    Passed,
    Probe,
    Probed,
    PruneNodes,
    ReleaseSequence,
    ReserveRoom,
    Results,
    ReusePrefix,
)
from cosine_protocol.stream import Error

LOG = logging.getLogger(__name__)
IDLE_S: Final = 10.0
"""A chain without passes for this long is idle. Passes of a request are closer together, and feeding the kept
tokens again takes far less than the pause."""
FRESH_S: Final = 5.0
"""Time from a head's join to its first pass, while it sets up the other stages (`OPEN_S`)."""
MAX_HELD_S: Final = 3600.0
"""Limit of the field of `Passed`."""
RETRY_AFTER_S: Final = 0.5
"""A lost chain frees its slots when the pass under way has ended."""
NO_MEMORY: Final = "no memory is left for a pass"


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


class ChainBooks(Protocol):
    """The sequences of one chain at this stage: `cosine_node.stages.host.HostedChain`."""

    number: int
    """Unique among the chains of a host."""
    books: PagedEngine

    def run(self, rows: Sequence[Row], activations: bytes | bytearray | None) -> bytes | list[RowResult]: ...

    def close(self) -> object: ...


class ChainHost(Protocol):
    """The layers that this stage holds: `cosine_node.stages.host.StageHost`."""

    layers: LayerRange
    numerics: str
    grammars: Grammars | None
    token_bytes: int
    pool_tokens: int

    def free_tokens(self, *, without: Collection[int] = ()) -> int:
        """The tokens of the largest pool that a new chain can have, without the chains of these numbers."""

    def open(self, *, pool_tokens: int, first_sequence: int) -> ChainBooks: ...


class ServedChain:
    """A chain that a head has set up here. `ended` is set when it accepts no more operations."""

    def __init__(
        self,
        join: Join,
        head: Channel,
        network: str,
        hosted: ChainBooks,
        host: ChainHost,
        passes: StagePasses,
        inbox_bytes: int,
    ) -> None:
        """`network` is the address range of the head, "" if unknown."""
        self.join = join
        self.head = head
        self.network = network
        self.hosted = hosted
        self._host = host
        self._passes = passes
        token_bytes = 0 if host.layers.is_first else host.token_bytes
        self.inbox = StageInbox(token_bytes=token_bytes, most_bytes=inbox_bytes)
        self.computed = ComputedFeeds()
        self.next: Channel | None = None
        self.is_followed = False
        self.is_sent_away = False
        self.has_worked = False
        self.since_s = _now_s()
        """The time since when it is without work; infinite while a pass runs."""
        self.ended = asyncio.Event()
        self._failures: asyncio.Queue[PeerError] = asyncio.Queue()

    def is_idle(self, now_s: float) -> bool:
        """True if another head may take its room; a head that only joins has it for `FRESH_S`."""
        return not self.is_sent_away and now_s - self.since_s >= (IDLE_S if self.has_worked else FRESH_S)

    def fail(self, error: PeerError) -> None:
        """End the chain with an error for its head."""
        self._failures.put_nowait(error)

    def send_away(self) -> None:
        """Give up the room of the idle chain; its head joins again when it has work."""
        self.is_sent_away = True
        self.hosted.close()
        self.fail(PeerError(ErrorCode.OVERLOADED, "another head needs the room of this idle chain", RETRY_AFTER_S))

    def begin(self, following: Channel | None) -> list[asyncio.Task[None]]:
        """Tell the head that the stage has joined, and begin the work, which ends with the first of these tasks.

        `following` is the stream to the next stage. The tasks raise `PeerError` and the errors of `receive`.
        """
        self.next = following
        tasks = [] if following is None else [asyncio.ensure_future(_listen(following))]
        self.head.post(Joined(self.join.chain))
        reading = self._read(self.head) if self._host.layers.is_first else self._hear()
        return tasks + [asyncio.ensure_future(work) for work in (reading, self._work(), self._failed())]

    async def follow(self, before: Channel) -> None:
        """Take the operations of the stage before until the chain ends. Raises as the tasks of `begin`."""
        self.is_followed = True
        before.post(Joined(self.join.chain))
        tasks = [asyncio.ensure_future(work) for work in (self._read(before), self._ended())]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                await task
        except PeerLost as lost:
            self.fail(PeerError(ErrorCode.NEIGHBOUR_LOST, f"the stage before is gone: {lost.reason}"))
        except PeerError as error:
            self.fail(error)
            raise
        except RemoteProtocolError as error:
            self.fail(PeerError(ErrorCode.MALFORMED, f"of the stage before: {error}"))
            raise
        finally:
            await end_all(tasks)

    async def _ended(self) -> None:
        await self.ended.wait()

    async def _failed(self) -> None:
        """Wait until the chain fails, and raise the error."""
        raise await self._failures.get()

    async def _read(self, channel: Channel) -> None:
        """Read operations into the inbox, and answer the head's probes."""
        turn = Turn()
        while True:
            await self.inbox.room()
            message = await channel.receive()
            # Thousands of messages may have arrived already, so `receive` may never yield to the event loop.
            await turn.spend(OPERATION_STEPS)
            if isinstance(message, Probe) and channel is self.head:
                await self._answer(message)
                continue
            if not isinstance(message, BookOperation | FeedPass | Activations):
                raise MalformedMessage(f"unexpected {type(message).__name__}")
            try:
                self.inbox.put(message, now_s=_now_s())
            except (BadActivations, MemoryError) as error:
                raise _told(error) from None

    async def _hear(self) -> None:
        """Answer the head's probes, the only messages for a stage that is not the first."""
        while isinstance(message := await self.head.receive(), Probe):
            await self._answer(message)
        raise MalformedMessage(f"unexpected {type(message).__name__}")

    async def _answer(self, probe: Probe) -> None:
        """Report the input and output of passes. Raises `PeerError`, `MalformedMessage`."""
        try:
            computed = self.computed.take(probe.parts)
        except TooManyProbes as error:
            raise PeerError(ErrorCode.OVERLOADED, str(error)) from None
        size_bytes, numerics = self._host.token_bytes, self._host.numerics

        def told(activations: bytes | bytearray | None, part: FeedPart) -> bytes:
            if activations is None:
                return b""
            wanted = memoryview(activations)[part.first * size_bytes : (part.first + part.tokens) * size_bytes]
            return project(wanted, tokens=part.tokens, numerics=numerics, seed=probe.seed)

        def trace(feed: ComputedFeed | None, part: FeedPart) -> PartTrace:
            return (
                PartTrace(b"", b"") if feed is None else PartTrace(told(feed.entered, part), told(feed.left, part))
            )

        traces = await self._passes.run(lambda: tuple(map(trace, computed, probe.parts)))
        self._say(Probed(traces))

    def _say(self, message: Message) -> None:
        if not self.head.post(message):
            raise PeerError(ErrorCode.OVERLOADED, "the head reads too slowly")

    async def _work(self) -> None:
        """Apply operations in order, and forward them. Raises `PeerError`."""
        turn = Turn()
        while True:
            operation = await self.inbox.take()
            if self.is_sent_away:
                # Its slots belong to another chain.
                continue
            try:
                await turn.spend(await self._apply(operation))
            except Exception as error:
                raise _told(error) from None

    async def _apply(self, operation: QueuedFeed | BookOperation) -> int:
        """Apply and forward one operation; return its steps."""
        if isinstance(operation, QueuedFeed):
            self.since_s = math.inf
            await self._feed(operation)
            self.since_s, self.has_worked = _now_s(), True
            return OPERATION_STEPS + count_tokens(operation.rows)
        steps = steps_of(operation, self.hosted.books)
        if isinstance(operation, OpenSequence) and self._host.layers.is_last:
            await self._prepare(operation.sampling.constraint)
        apply_to_books(self.hosted.books, operation)
        if self.next is not None:
            await self.next.send(operation)
        return steps

    async def _prepare(self, constraint: Constraint | None) -> None:
        """Compile a constraint, as an honest head has done before. Raises `PeerError`."""
        if constraint is None:
            return
        if self._host.grammars is None:
            raise PeerError(ErrorCode.UNSUPPORTED, "constraints are not supported here")
        try:
            await self._host.grammars.prepare(constraint)
        except OSError:
            sentence = "the constraint cannot be compiled now"
            raise PeerError(ErrorCode.OVERLOADED, sentence, RETRY_AFTER_S) from None

    async def _feed(self, feed: QueuedFeed) -> None:
        """Run one pass, and send its results to the next stage or the head."""
        taken_s, tokens = _now_s(), count_tokens(feed.rows)
        for row in feed.rows:
            live = len(self.hosted.books.tree(row.sequence).nodes) + len(row.nodes)
            if live > MAX_NAMED_NODES:
                raise LocalProtocolError(f"Sequence {row.sequence} would have {live} nodes beside its prefix.")
        found = await self._passes.forward(
            lambda: self.hosted.run(feed.rows, feed.activations), tokens=tokens, rows=len(feed.rows)
        )
        left = found if isinstance(found, bytes) else None
        self.computed.add(feed.number, ComputedFeed(tokens, feed.activations, left))
        if TIMES in self.head.features:
            # Time spent waiting for this chain's previous passes, or for the next link, is not this stage's.
            held_us = round(1e6 * min(MAX_HELD_S, _now_s() - taken_s))
            came_us = None if feed.came_s is None else round(1e6 * min(MAX_HELD_S, feed.came_s))
            self.head.post(Passed(feed.number, held_us, is_left_out=False, came_us=came_us))
        if self.next is not None and isinstance(found, bytes):
            for message in feed_messages(feed.number, feed.rows, found):
                await self.next.send(message)
        elif self.next is None and isinstance(found, list):
            self._say(Results(feed.number, tuple(map(answer_of, found))))


async def _listen(following: Channel) -> None:
    """Wait until the next stage ends its stream. Raises `PeerError`."""
    try:
        message = await following.receive()
    except (PeerLost, RemoteProtocolError) as error:
        raise PeerError(ErrorCode.NEIGHBOUR_LOST, f"the next stage is gone: {error}") from None
    sentence = message.message if isinstance(message, Error) else f"unexpected {type(message).__name__}"
    raise PeerError(ErrorCode.NEIGHBOUR_LOST, f"the next stage: {sentence}")


def _told(error: Exception) -> PeerError:
    """The error of an operation for the head."""
    match error:
        case PeerError():
            return error
        case BadActivations():
            return PeerError(ErrorCode.BAD_ACTIVATIONS, str(error))
        case OutOfMemory() | MemoryError():
            return PeerError(ErrorCode.OUT_OF_MEMORY, NO_MEMORY)
        case LocalProtocolError() | OutOfPages():
            return PeerError(ErrorCode.OUT_OF_STEP, str(error))
        case PeerLost():
            return PeerError(ErrorCode.NEIGHBOUR_LOST, f"the next stage is gone: {error.reason}")
    LOG.error("an operation of a chain failed", exc_info=error)
    return PeerError(ErrorCode.INTERNAL, f"a pass failed: {type(error).__name__}")


def _now_s() -> float:
    return asyncio.get_running_loop().time()
