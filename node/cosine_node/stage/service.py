"""The stage's shell: chains that heads set up, operations in, operations or results out."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from functools import partial
from typing import Final, Protocol, TypeVar

from cosine_node.engine.base import OutOfMemory, OutOfPages, Row, RowResult
from cosine_node.engine.operations import BadActivations, NotComputed, apply_to_books
from cosine_node.engine.paged import PagedEngine
from cosine_node.stage.inbox import QueuedFeed, StageInbox
from cosine_node.stage.look_ahead import will_be_dropped
from cosine_node.stage.wire_rows import answer_of, feed_messages
from cosine_p2p.call_budget import CallBudget
from cosine_p2p.channel import MAX_SENTENCE, READ_BURST, READ_RATE, SILENCE_S, Channel, StepCounts
from cosine_p2p.transport.base import Stream, Transport
from cosine_protocol import messages as m
from cosine_protocol.errors import (
    CosineError,
    ErrorCode,
    LocalProtocolError,
    MalformedMessage,
    PeerError,
    PeerLost,
    RemoteProtocolError,
)
from cosine_protocol.layer_range import LayerRange
from cosine_protocol.protocols import STAGE
from cosine_protocol.stage_messages import Activations, BookOperation, FeedPass, Follow, Join, Joined, Results

LOG = logging.getLogger(__name__)
INBOX_BYTES: Final = 8 << 20
"""A choice: a chunk of a prompt, 256 tokens at a width of 8,192 in float32."""
MAX_CHAINS: Final = 64
"""A choice far above the heads that one stage has time for."""
READ_FACTOR: Final = 32
"""A choice: 125 MiB of activations a second, what a gigabit link carries. What is read is bounded by the inbox."""
_T = TypeVar("_T")
Offload = Callable[[Callable[[], None]], Awaitable[None]]
"""Runs work in the engine's thread, one piece at a time."""


class ChainBooks(Protocol):
    """The sequences of one chain at this stage: `cosine_node.engine.stage_host.HostedChain`."""

    @property
    def books(self) -> PagedEngine: ...

    def run(self, rows: Sequence[Row], activations: bytes | bytearray | None) -> bytes | list[RowResult]: ...

    @property
    def close(self) -> Callable[[], None]: ...


class ChainHost(Protocol):
    """The layers that this stage holds: `cosine_node.engine.stage_host.StageHost`."""

    @property
    def layers(self) -> LayerRange: ...

    @property
    def numerics(self) -> str: ...

    @property
    def token_bytes(self) -> int: ...

    def open(
        self, *, pool_tokens: int, window_pool_tokens: int | None, window_tokens: int | None, first_sequence: int
    ) -> ChainBooks: ...


class _ServedChain:
    """A chain that a head has set up here. `ended` is set once nothing more is taken for it."""

    def __init__(self, join: Join, head: Channel, books: ChainBooks, inbox: StageInbox) -> None:
        self.join = join
        self.head = head
        self.hosted = books
        self.inbox = inbox
        self.next: Channel | None = None
        self.is_followed = False
        self.ended = asyncio.Event()
        self._failures: asyncio.Queue[PeerError] = asyncio.Queue()

    def fail(self, error: PeerError) -> None:
        """End the chain; its head reads why."""
        self._failures.put_nowait(error)

    async def raise_failure(self) -> None:
        """Wait until the chain fails, and raise why."""
        raise await self._failures.get()


class StageService:
    """Serves `/cosine/stage`: a chain lives as long as its head's stream, and the streams between stages."""

    def __init__(
        self,
        host: ChainHost,
        *,
        transport: Transport,
        target_digest: bytes,
        offload: Offload,
        inbox_bytes: int = INBOX_BYTES,
        note_addresses: Callable[[str, Sequence[str]], object] = lambda peer_id, addresses: None,
    ) -> None:
        """`note_addresses` is told where the peer behind this one may be dialled."""
        self._host = host
        self._transport = transport
        self._target_digest = target_digest
        self._offload = offload
        self._inbox_bytes = inbox_bytes
        self._note_addresses = note_addresses
        self._reads = CallBudget(peer_rate=READ_FACTOR * READ_RATE, peer_burst=READ_FACTOR * READ_BURST)
        self._chains: dict[bytes, _ServedChain] = {}
        self.progress = StepCounts()
        self.skipped_feeds = 0

    @property
    def chains(self) -> int:
        """Chains served now."""
        return len(self._chains)

    @property
    def waiting_bytes(self) -> int:
        """About what the operations take that wait for the engine."""
        return sum(chain.inbox.bytes for chain in self._chains.values())

    async def start(self) -> None:
        """Begin to accept streams."""
        await self._transport.serve(STAGE, self.handle)

    async def handle(self, stream: Stream) -> None:
        """Serve one stream, of a head or of the stage before, until it ends."""
        async with Channel(stream, STAGE, progress=self.progress, budget=self._reads) as channel:
            try:
                match await channel.receive():
                    case Join() as join:
                        await self._serve(channel, join)
                    case Follow(chain):
                        await self._follow(channel, chain)
                    case other:
                        raise MalformedMessage(f"unexpected {type(other).__name__}")
            except PeerLost as lost:
                LOG.debug("peer %s: %s", lost.peer_id, lost.reason)
            except PeerError as error:
                self._tell(channel, error)
            except RemoteProtocolError as error:
                channel.post(m.Error(0, ErrorCode.MALFORMED, str(error)[:MAX_SENTENCE], None))

    def _tell(self, channel: Channel, error: PeerError) -> None:
        LOG.info("a chain of %s: %s", channel.peer_id, error.message)
        sentence = f"layers {self._host.layers}: {error.message}"
        channel.post(m.Error(0, error.code, sentence[:MAX_SENTENCE], error.retry_after_s))

    async def _serve(self, head: Channel, join: Join) -> None:
        """Serve a chain until anything of it ends. Raises `PeerError` where it cannot be."""
        chain = self._open(head, join)
        self._chains[join.chain] = chain
        tasks: list[asyncio.Task[None]] = []
        async with AsyncExitStack() as stack:
            try:
                if join.target is not None:
                    chain.next = await self._dial(join, stack)
                    tasks.append(asyncio.ensure_future(_listen(chain.next)))
                head.post(Joined(join.chain))
                taking = _read(head, chain) if self._host.layers.is_first else _hear(head)
                parts = (taking, self._work(chain), chain.raise_failure())
                tasks += [asyncio.ensure_future(part) for part in parts]
                done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
                for ended in done:
                    await ended
            except PeerError as error:
                # Before the stage behind says that this one has left it.
                self._tell(head, error)
            finally:
                chain.ended.set()
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)
                # No pass of it runs any more: its slots may be another's.
                chain.hosted.close()
                del self._chains[join.chain]

    def _open(self, head: Channel, join: Join) -> _ServedChain:
        layers = self._host.layers
        if join.target_digest != self._target_digest:
            raise PeerError(ErrorCode.WRONG_TARGET, "layers of another target are held")
        if join.numerics != self._host.numerics:
            raise PeerError(ErrorCode.UNSUPPORTED, f"the numerics are {self._host.numerics}")
        if (join.first_layer, join.end_layer, join.layers) != (layers.first, layers.end, layers.layers):
            raise PeerError(ErrorCode.WRONG_LAYERS, f"these are held, not {join.first_layer}:{join.end_layer}")
        has_wrong_source = layers.is_first and join.source != head.peer_id
        if (join.target is None) != layers.is_last or has_wrong_source or join.chain in self._chains:
            raise PeerError(ErrorCode.MALFORMED, "the chain does not fit its stream")
        if (join.window_pool_tokens is None) != (join.window_tokens is None):
            raise PeerError(ErrorCode.MALFORMED, "windows have a size and a pool, or neither")
        if len(self._chains) >= MAX_CHAINS:
            raise PeerError(ErrorCode.OVERLOADED, "too many chains are served")
        try:
            books = self._host.open(
                pool_tokens=join.pool_tokens,
                window_pool_tokens=join.window_pool_tokens,
                window_tokens=join.window_tokens,
                first_sequence=join.first_sequence,
            )
        except OutOfPages as error:
            raise PeerError(ErrorCode.OVERLOADED, str(error)) from None
        token_bytes = 0 if layers.is_first else self._host.token_bytes
        return _ServedChain(join, head, books, StageInbox(token_bytes=token_bytes, most_bytes=self._inbox_bytes))

    async def _dial(self, join: Join, stack: AsyncExitStack) -> Channel:
        """The stream to the next stage, once that knows what comes over it. Raises `PeerError`."""
        assert join.target is not None
        self._note_addresses(join.target, join.addresses)
        try:
            async with asyncio.timeout(SILENCE_S):
                stream = await self._transport.dial(join.target, STAGE)
                channel = await stack.enter_async_context(
                    Channel(stream, STAGE, progress=self.progress, budget=self._reads)
                )
                channel.post(Follow(join.chain))
                answer = await channel.receive()
        except (PeerLost, RemoteProtocolError, TimeoutError) as error:
            raise PeerError(ErrorCode.NEIGHBOUR_LOST, f"no way to the next stage: {error}") from None
        if not isinstance(answer, Joined):
            sentence = answer.message if isinstance(answer, m.Error) else "it did not say that it follows"
            raise PeerError(ErrorCode.NEIGHBOUR_LOST, f"no way to the next stage: {sentence}")
        return channel

    async def _follow(self, channel: Channel, name: bytes) -> None:
        """Take the operations of a chain from the peer that its head has named. Raises `PeerError`."""
        chain = self._chains.get(name)
        is_named = chain is not None and chain.join.source == channel.peer_id and not self._host.layers.is_first
        if chain is None or not is_named or chain.is_followed:
            raise PeerError(ErrorCode.WRONG_PEER, "no operations are taken from this peer for this chain")
        chain.is_followed = True
        channel.post(Joined(name))
        reading = asyncio.ensure_future(_read(channel, chain))
        ending = asyncio.ensure_future(chain.ended.wait())
        try:
            await asyncio.wait([reading, ending], return_when=asyncio.FIRST_COMPLETED)
            if reading.done():
                await reading
        except PeerLost as lost:
            chain.fail(PeerError(ErrorCode.NEIGHBOUR_LOST, f"the stage before is gone: {lost.reason}"))
        except PeerError as error:
            chain.fail(error)
            raise
        except RemoteProtocolError as error:
            chain.fail(PeerError(ErrorCode.MALFORMED, f"of the stage before: {error}"))
            raise
        finally:
            for task in (reading, ending):
                task.cancel()
            await asyncio.gather(reading, ending, return_exceptions=True)

    async def _work(self, chain: _ServedChain) -> None:
        """Apply operations in their order, and pass them on. Raises `PeerError`."""
        while True:
            operation = await chain.inbox.take()
            try:
                if isinstance(operation, QueuedFeed):
                    await self._feed(chain, operation)
                else:
                    apply_to_books(chain.hosted.books, operation)
                    if chain.next is not None:
                        await chain.next.send(operation)
            except BadActivations as error:
                raise PeerError(ErrorCode.BAD_ACTIVATIONS, str(error)) from None
            except OutOfMemory as error:
                raise PeerError(ErrorCode.OUT_OF_MEMORY, str(error)) from None
            except (LocalProtocolError, OutOfPages) as error:
                raise PeerError(ErrorCode.OUT_OF_STEP, str(error)) from None
            except PeerLost as lost:
                raise PeerError(ErrorCode.NEIGHBOUR_LOST, f"the next stage is gone: {lost.reason}") from None
            except Exception as error:
                LOG.exception("an operation of a chain failed")
                raise PeerError(ErrorCode.INTERNAL, f"a pass failed: {type(error).__name__}") from None

    async def _feed(self, chain: _ServedChain, feed: QueuedFeed) -> None:
        found: bytes | list[RowResult]
        if self._is_skipped(chain, feed):
            self.skipped_feeds += 1
            chain.hosted.books.feed(feed.rows)
            left_out = RowResult((), error=NotComputed("Its nodes were dropped."))
            found = b"" if chain.next is not None else [left_out] * len(feed.rows)
        else:
            found = await self._run(partial(chain.hosted.run, feed.rows, feed.activations))
            self.progress.steps += 1
        if isinstance(found, list):
            if not chain.head.post(Results(feed.number, tuple(map(answer_of, found)))):
                raise PeerError(ErrorCode.OVERLOADED, "the head reads too slowly")
            return
        assert chain.next is not None
        for message in feed_messages(feed.number, feed.rows, found):
            await chain.next.send(message)

    def _is_skipped(self, chain: _ServedChain, feed: QueuedFeed) -> bool:
        """True if nobody wants the feed, or a stage before has left it out."""
        if feed.activations is None and not self._host.layers.is_first:
            return True
        later = chain.inbox.later()
        for row in feed.rows:
            nodes = chain.hosted.books.tree(row.sequence).nodes
            if not will_be_dropped(row, {name: node.parent for name, node in nodes.items()}, later):
                return False
        return True

    async def _run(self, work: Callable[[], _T]) -> _T:
        """Work in the engine's thread. Where the chain ends meanwhile, this still waits for the work to end."""
        found: list[_T] = []
        errors: list[CosineError] = []

        def call() -> None:
            # Raised below, for nobody would hear of it here where the chain has ended.
            try:
                found.append(work())
            except CosineError as error:
                errors.append(error)

        running = asyncio.ensure_future(self._offload(call))
        try:
            await asyncio.shield(running)
        finally:
            await asyncio.gather(running, return_exceptions=True)
        if errors:
            raise errors[0]
        return found[0]


async def _read(channel: Channel, chain: _ServedChain) -> None:
    """Fill the chain's inbox; while that is full nothing is read. Raises `PeerError` and what `receive` raises."""
    while True:
        await chain.inbox.room()
        message = await channel.receive()
        if not isinstance(message, BookOperation | FeedPass | Activations):
            raise MalformedMessage(f"unexpected {type(message).__name__}")
        try:
            chain.inbox.put(message)
        except BadActivations as error:
            raise PeerError(ErrorCode.BAD_ACTIVATIONS, str(error)) from None


async def _hear(head: Channel) -> None:
    """Wait until the head's stream ends: it has nothing more to say to a stage that is not the first."""
    message = await head.receive()
    raise MalformedMessage(f"unexpected {type(message).__name__}")


async def _listen(following: Channel) -> None:
    """Wait until the next stage ends its stream. Raises `PeerError`."""
    try:
        message = await following.receive()
    except (PeerLost, RemoteProtocolError) as error:
        raise PeerError(ErrorCode.NEIGHBOUR_LOST, f"the next stage is gone: {error}") from None
    sentence = message.message if isinstance(message, m.Error) else f"unexpected {type(message).__name__}"
    raise PeerError(ErrorCode.NEIGHBOUR_LOST, f"the next stage: {sentence}")
