"""A chain that a head has set up at a stage: it reads operations, applies them in order, and passes them on.

Theory of operation
-------------------
Operations come from the head to the first stage, and from there from stage to stage. Reading fills a queue that is
bounded in bytes (`StageInbox`); while it is full nothing more is read, and the sender waits. One task applies the
operations to the chain's pages and trees, runs passes in the engine's thread, and sends both on before it takes the
next operation. The last stage answers passes to the head. Every stage tells the head when it has passed a pass on
(`Passed`), and answers its probes (`proof`).

Chains share the event loop by steps (`Turn`), so that thousands of small operations of one chain delay no other. A
chain without passes for a while is idle; the stage may give its room to another head.
"""

import asyncio
import logging
import math
from collections.abc import Collection, Sequence
from typing import Final, Protocol

from cosine_engine.base import OutOfMemory, OutOfPages, Row, RowResult
from cosine_engine.constraints.grammars import Grammars
from cosine_engine.paged import PagedEngine
from cosine_node.passes.runner import count_tokens
from cosine_node.stages.frames import BadActivations, answer_of, apply_to_books, feed_messages
from cosine_node.stages.inbox import OPERATION_STEPS, QueuedFeed, StageInbox, Turn, steps_of
from cosine_node.stages.passes import StagePasses
from cosine_node.stages.proof import ComputedFeed, ComputedFeeds, TooManyProbes, project
from cosine_p2p.transport.channel import Channel
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
    LayerRange,
    OpenSequence,
    PartTrace,
    Passed,
    Probe,
    Probed,
    Results,
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
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

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
        """Report the input and output of some passes. Raises `PeerError`, `MalformedMessage`."""
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
        """Apply operations in order, and pass them on. Raises `PeerError`."""
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
        """Apply one operation, and pass it on; return its steps."""
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
        """Run one pass, and send what it found to the next stage or the head."""
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
    """An error of an operation, as the head is told."""
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
