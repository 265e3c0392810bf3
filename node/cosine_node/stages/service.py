"""The stage service: it serves the chains that heads set up, and passes their operations on."""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Collection, Sequence
from contextlib import AsyncExitStack
from functools import partial
from typing import Final, Protocol, TypeVar

from cosine_engine.base import OutOfMemory, OutOfPages, Row, RowResult
from cosine_engine.constraints.grammars import Grammars
from cosine_engine.kv_pool import PAGE_TOKENS
from cosine_engine.paged import PagedEngine
from cosine_engine.pool_size import USUAL_TOKENS
from cosine_node.passes.counts import StageCounts
from cosine_node.passes.runner import count_tokens
from cosine_node.stages.feeds import answer_of, feed_messages
from cosine_node.stages.idle_chains import IdleChains
from cosine_node.stages.inbox import (
    OPERATION_STEPS,
    BusyShare,
    ComputedFeed,
    ComputedFeeds,
    QueuedFeed,
    StageInbox,
    TooManyProbes,
    Turn,
    steps_of,
)
from cosine_node.stages.operations import BadActivations, apply_to_books
from cosine_node.stages.projections import VALUE_BYTES, project
from cosine_p2p.transport.addresses import range_of
from cosine_p2p.transport.base import Stream, Transport
from cosine_p2p.transport.channel import MAX_SENTENCE, READ_BURST, READ_RATE, SILENCE_S, Channel, StepCounts
from cosine_p2p.trust.call_budget import CallBudget
from cosine_protocol.errors import (
    CosineError,
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
    PROBES,
    STAGE,
    TIMES,
    Activations,
    BookOperation,
    FeedPart,
    FeedPass,
    Follow,
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
from cosine_protocol.stream import CONSTRAINTS, Error

LOG = logging.getLogger(__name__)
INBOX_BYTES: Final = 8 << 20
"""A chunk of a prompt, 256 tokens at a width of 8,192 in float32."""
MAX_CHAINS: Final = 64
"""Far more than the heads that one stage has time for."""
NETWORK_SHARE: Final = 0.75
"""Limit of the share of pool and chains for the working heads of one address range."""
MAX_PEER_CHAINS: Final = 4
"""A head has one, for a moment also the one before."""
NO_MEMORY: Final = "no memory is left for a pass"
RETRY_AFTER_S: Final = 0.5
"""A lost chain frees its slots when the pass under way has ended."""
MAX_HELD_S: Final = 3600.0
"""Limit of the field of `Passed`."""
READ_FACTOR: Final = 32
"""125 MiB of activations a second, the speed of a gigabit link. The inbox bounds what is read."""
_T = TypeVar("_T")
Offload = Callable[[Callable[[], None]], Awaitable[None]]
"""Runs work in the engine's thread, one piece at a time."""


class ChainBooks(Protocol):
    """The sequences of one chain at this stage: `cosine_node.stages.engine.HostedChain`."""

    @property
    def number(self) -> int:
        """The unique number among the chains of a host."""

    @property
    def books(self) -> PagedEngine: ...

    def run(self, rows: Sequence[Row], activations: bytes | bytearray | None) -> bytes | list[RowResult]: ...

    @property
    def close(self) -> Callable[[], object]: ...


class ChainHost(Protocol):
    """The layers that this stage holds: `cosine_node.stages.engine.StageHost`."""

    @property
    def layers(self) -> LayerRange: ...

    @property
    def numerics(self) -> str: ...

    @property
    def grammars(self) -> Grammars | None: ...

    @property
    def token_bytes(self) -> int: ...

    @property
    def pool_tokens(self) -> int: ...

    def free_tokens(self, *, without: Collection[int] = ()) -> int:
        """The tokens of the largest pool that a new chain can have, without the chains of these numbers."""

    def open(self, *, pool_tokens: int, first_sequence: int) -> ChainBooks: ...


class ServedChain:
    """A chain that a head has set up here. `ended` is set when it accepts no more operations."""

    def __init__(self, join: Join, head: Channel, books: ChainBooks, inbox: StageInbox) -> None:
        self.join = join
        self.head = head
        self.hosted = books
        self.inbox = inbox
        self.computed = ComputedFeeds()
        self.next: Channel | None = None
        self.is_followed = False
        self.is_sent_away = False
        self.ended = asyncio.Event()
        self._failures: asyncio.Queue[PeerError] = asyncio.Queue()

    def fail(self, error: PeerError) -> None:
        """End the chain with an error for its head."""
        self._failures.put_nowait(error)

    async def raise_failure(self) -> None:
        """Wait until the chain fails, and raise the error."""
        raise await self._failures.get()


async def read(channel: Channel, chain: ServedChain, answer: Callable[[Probe], Awaitable[None]]) -> None:
    """Read operations into the inbox, and answer probes. Raises `PeerError` and the errors of `receive`."""
    turn = Turn()
    while True:
        await chain.inbox.room()
        message = await channel.receive()
        # Thousands of messages may have arrived already, so `receive` may never yield to the event loop.
        await turn.spend(OPERATION_STEPS)
        if isinstance(message, Probe) and channel is chain.head:
            await answer(message)
            continue
        if not isinstance(message, BookOperation | FeedPass | Activations):
            raise MalformedMessage(f"unexpected {type(message).__name__}")
        try:
            chain.inbox.put(message, now_s=asyncio.get_running_loop().time())
        except BadActivations as error:
            raise PeerError(ErrorCode.BAD_ACTIVATIONS, str(error)) from None
        except MemoryError:
            raise PeerError(ErrorCode.OUT_OF_MEMORY, NO_MEMORY) from None


async def hear(head: Channel, answer: Callable[[Probe], Awaitable[None]]) -> None:
    """Answer the head's probes, the only messages for a stage that is not the first."""
    while isinstance(message := await head.receive(), Probe):
        await answer(message)
    raise MalformedMessage(f"unexpected {type(message).__name__}")


async def listen(following: Channel) -> None:
    """Wait until the next stage ends its stream. Raises `PeerError`."""
    try:
        message = await following.receive()
    except (PeerLost, RemoteProtocolError) as error:
        raise PeerError(ErrorCode.NEIGHBOUR_LOST, f"the next stage is gone: {error}") from None
    sentence = message.message if isinstance(message, Error) else f"unexpected {type(message).__name__}"
    raise PeerError(ErrorCode.NEIGHBOUR_LOST, f"the next stage: {sentence}")


class StageService:
    """Serves `/cosine/stage`: a chain lives as long as its head's stream and the streams between stages."""

    def __init__(
        self,
        host: ChainHost,
        *,
        transport: Transport,
        target_digest: bytes,
        offload: Offload,
        inbox_bytes: int = INBOX_BYTES,
        note_addresses: Callable[[str, Sequence[str]], object] = lambda peer_id, addresses: None,
        pass_s: float = 0.0,
        least_s: Callable[[int], float] | None = None,
        share: float = 1.0,
        note_pass: Callable[[int, float], object] = lambda tokens, elapsed_s: None,
    ) -> None:
        """`note_addresses` takes a next stage's addresses, `note_pass` tokens and seconds of a pass.

        `least_s` returns the minimum duration of a pass by its tokens, for an emulated device. Passes take `share`
        of the time.
        """
        self._host = host
        self._transport = transport
        self._target_digest = target_digest
        self._offload = offload
        self._inbox_bytes = inbox_bytes
        self._note_addresses = note_addresses
        self._reads = CallBudget(peer_rate=READ_FACTOR * READ_RATE, peer_burst=READ_FACTOR * READ_BURST)
        self._note_pass = note_pass
        self._least_s = least_s
        self._share = share
        self._chains: dict[bytes, ServedChain] = {}
        self._idle = IdleChains()
        self._clock = time.monotonic
        self._is_draining = False
        self._is_resting = False
        self._has_ended = asyncio.Event()
        self.pass_s = pass_s
        self.busy = BusyShare(now_s=time.monotonic())
        self.progress = StepCounts()
        self.counts = StageCounts()

    @property
    def requests(self) -> int:
        """The number of chains served now, which is the load of the node."""
        return len(self._chains)

    @property
    def room_tokens(self) -> int:
        """The tokens that a new head's chain may have, with the room of idle chains."""
        idle = [chain.hosted.number for chain in self._without_work()]
        return min(self._host.free_tokens(without=idle), self._peer_tokens) // PAGE_TOKENS * PAGE_TOKENS

    def _without_work(self) -> list[ServedChain]:
        """The idle chains, whose room other heads may take; the longest idle first."""
        idle = map(self._chains.get, self._idle.idle(now_s=self._clock()))
        return [chain for chain in idle if chain is not None and not chain.is_sent_away]

    @property
    def _peer_tokens(self) -> int:
        """The limit of one peer's chains together: half of the pool, or room for one usual request."""
        return max(self._host.pool_tokens // 2, min(self._host.pool_tokens, USUAL_TOKENS))

    @property
    def waiting_bytes(self) -> int:
        """The approximate size of the operations that wait for the engine."""
        return sum(chain.inbox.bytes for chain in self._chains.values())

    async def start(self) -> None:
        """Begin to accept streams."""
        # The event loop's clock, bound here since metrics are read in another thread.
        self._clock = asyncio.get_running_loop().time
        await self._transport.serve(STAGE, self.handle)

    async def run(self) -> None:
        """Wait until cancelled; streams do all the work."""
        await asyncio.Event().wait()

    def rest(self, is_resting: bool) -> None:
        """Refuse new chains while `is_resting`; the present ones go on."""
        self._is_resting = is_resting

    async def drain(self) -> None:
        """Refuse new chains, and end the present ones; their heads continue over other stages."""
        self._is_draining = True
        for chain in self._chains.values():
            chain.fail(PeerError(ErrorCode.SHUTTING_DOWN, "the stage is leaving"))
        while self._chains:
            self._has_ended.clear()
            await self._has_ended.wait()

    async def handle(self, stream: Stream) -> None:
        """Serve one stream, of a head or of the stage before, until it ends."""
        lacks = () if self._host.grammars is not None else (CONSTRAINTS,)
        if self._host.numerics not in VALUE_BYTES:
            lacks = (*lacks, PROBES)
        async with Channel(stream, STAGE, progress=self.progress, budget=self._reads, lacks=lacks) as channel:
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
                channel.post(Error(0, ErrorCode.MALFORMED, str(error)[:MAX_SENTENCE], None))

    def _tell(self, channel: Channel, error: PeerError) -> None:
        LOG.info("a chain of %s: %s", channel.peer_id, error.message)
        sentence = f"layers {self._host.layers}: {error.message}"
        channel.post(Error(0, error.code, sentence[:MAX_SENTENCE], error.retry_after_s))

    async def _serve(self, head: Channel, join: Join) -> None:
        """Serve a chain until any part of it ends. Raises `PeerError` if it cannot be served."""
        network = range_of(await self._transport.address_of(head.peer_id))
        chain = self._open(head, join, network)
        self._chains[join.chain] = chain
        self._idle.note_joined(join.chain, peer_id=head.peer_id, network=network, now_s=self._clock())
        tasks: list[asyncio.Task[None]] = []
        async with AsyncExitStack() as stack:
            try:
                if join.target is not None:
                    chain.next = await self._dial(join, stack)
                    tasks.append(asyncio.ensure_future(listen(chain.next)))
                head.post(Joined(join.chain))
                answer = partial(self._answer, chain)
                taking = read(head, chain, answer) if self._host.layers.is_first else hear(head, answer)
                parts = (taking, self._work(chain), chain.raise_failure())
                tasks += [asyncio.ensure_future(part) for part in parts]
                done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
                for ended in done:
                    await ended
            except PeerError as error:
                # The head must hear this before the next stage reports that this one is gone.
                self._tell(head, error)
            finally:
                chain.ended.set()
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)
                # No pass of it runs any more, so its slots are free.
                chain.hosted.close()
                del self._chains[join.chain]
                self._idle.note_ended(join.chain, now_s=self._clock())
                self._has_ended.set()

    def _open(self, head: Channel, join: Join, network: str) -> ServedChain:
        """A new chain with a pool of its own. Raises `PeerError`."""
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
        if join.window_pool_tokens is not None or join.window_tokens is not None:
            raise PeerError(ErrorCode.UNSUPPORTED, "windows have no pool of their own here")
        if self._is_draining:
            raise PeerError(ErrorCode.SHUTTING_DOWN, "the stage is leaving")
        if self._is_resting:
            raise PeerError(ErrorCode.OVERLOADED, "the stage rests now", RETRY_AFTER_S)
        books = self._room(head.peer_id, join, network)
        self.counts.opened += 1
        token_bytes = 0 if layers.is_first else self._host.token_bytes
        return ServedChain(join, head, books, StageInbox(token_bytes=token_bytes, most_bytes=self._inbox_bytes))

    def _room(self, peer_id: str, join: Join, network: str) -> ChainBooks:
        """Reserve room for a chain, if necessary of idle chains. Raises `PeerError`."""
        own = [chain.join for chain in self._chains.values() if chain.head.peer_id == peer_id]
        near = [self._chains[chain] for chain in self._idle.in_network(network)]
        idle = self._without_work()
        if len(own) >= MAX_PEER_CHAINS or (len(self._chains) >= MAX_CHAINS and not idle):
            raise PeerError(ErrorCode.OVERLOADED, "too many chains are served", RETRY_AFTER_S)
        asked_tokens = sum(each.pool_tokens for each in own) + join.pool_tokens
        if asked_tokens > self._peer_tokens:
            sentence = f"one head may have {self._peer_tokens} token slots, not {asked_tokens}"
            raise PeerError(ErrorCode.OVERLOADED, sentence, RETRY_AFTER_S)
        working = [chain for chain in near if chain not in idle]
        near_tokens = max(self._peer_tokens, int(NETWORK_SHARE * self._host.pool_tokens))
        is_over = sum(chain.join.pool_tokens for chain in working) + join.pool_tokens > near_tokens
        if is_over or len(working) >= NETWORK_SHARE * MAX_CHAINS:
            sentence = f"the heads of one network may have {near_tokens} token slots together"
            raise PeerError(ErrorCode.OVERLOADED, sentence, RETRY_AFTER_S)
        is_enough = self._host.free_tokens(without=[chain.hosted.number for chain in idle]) >= join.pool_tokens
        if len(self._chains) >= MAX_CHAINS:
            self._send_away(idle.pop(0))
        while True:
            try:
                return self._host.open(pool_tokens=join.pool_tokens, first_sequence=join.first_sequence)
            except OutOfPages as error:
                if not (idle and is_enough):
                    raise PeerError(ErrorCode.OVERLOADED, str(error), RETRY_AFTER_S) from None
            self._send_away(idle.pop(0))

    def _send_away(self, chain: ServedChain) -> None:
        """Take the room of an idle chain; its head joins again when it has work."""
        chain.is_sent_away = True
        chain.hosted.close()
        chain.fail(PeerError(ErrorCode.OVERLOADED, "another head needs the room of this idle chain", RETRY_AFTER_S))

    async def _dial(self, join: Join, stack: AsyncExitStack) -> Channel:
        """Open the stream to the next stage. Raises `PeerError`."""
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
            sentence = answer.message if isinstance(answer, Error) else "it did not say that it follows"
            raise PeerError(ErrorCode.NEIGHBOUR_LOST, f"no way to the next stage: {sentence}")
        return channel

    async def _follow(self, channel: Channel, name: bytes) -> None:
        """Accept the operations of a chain from the peer that its head has named. Raises `PeerError`."""
        chain = self._chains.get(name)
        is_named = chain is not None and chain.join.source == channel.peer_id and not self._host.layers.is_first
        if chain is None or not is_named or chain.is_followed:
            raise PeerError(ErrorCode.WRONG_PEER, "no operations are taken from this peer for this chain")
        chain.is_followed = True
        channel.post(Joined(name))
        reading = asyncio.ensure_future(read(channel, chain, partial(self._answer, chain)))
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

    async def _work(self, chain: ServedChain) -> None:
        """Apply operations in order, and pass them on. Raises `PeerError`."""
        turn = Turn()
        while True:
            operation = await chain.inbox.take()
            if chain.is_sent_away:
                # Its slots belong to another chain.
                continue
            try:
                await turn.spend(await self._apply(chain, operation))
            except PeerError:
                raise
            except BadActivations as error:
                raise PeerError(ErrorCode.BAD_ACTIVATIONS, str(error)) from None
            except (OutOfMemory, MemoryError):
                raise PeerError(ErrorCode.OUT_OF_MEMORY, NO_MEMORY) from None
            except (LocalProtocolError, OutOfPages) as error:
                raise PeerError(ErrorCode.OUT_OF_STEP, str(error)) from None
            except PeerLost as lost:
                raise PeerError(ErrorCode.NEIGHBOUR_LOST, f"the next stage is gone: {lost.reason}") from None
            except Exception as error:
                LOG.exception("an operation of a chain failed")
                raise PeerError(ErrorCode.INTERNAL, f"a pass failed: {type(error).__name__}") from None

    async def _apply(self, chain: ServedChain, operation: QueuedFeed | BookOperation) -> int:
        """Apply one operation, and pass it on; return its steps."""
        if isinstance(operation, QueuedFeed):
            self._idle.note_begun(chain.join.chain)
            await self._feed(chain, operation)
            self._idle.note_worked(chain.join.chain, now_s=self._clock())
            return OPERATION_STEPS + count_tokens(operation.rows)
        steps = steps_of(operation, chain.hosted.books)
        if isinstance(operation, OpenSequence) and self._host.layers.is_last:
            await self._prepare(operation.sampling.constraint)
        apply_to_books(chain.hosted.books, operation)
        if chain.next is not None:
            await chain.next.send(operation)
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

    async def _feed(self, chain: ServedChain, feed: QueuedFeed) -> None:
        """Run one pass, and send what it found to the next stage or the head."""
        taken_s = self._clock()
        for row in feed.rows:
            live = len(chain.hosted.books.tree(row.sequence).nodes) + len(row.nodes)
            if live > MAX_NAMED_NODES:
                raise LocalProtocolError(f"Sequence {row.sequence} would have {live} nodes beside its prefix.")
        found = await self._compute(chain, feed)
        left = found if isinstance(found, bytes) else None
        chain.computed.add(feed.number, ComputedFeed(count_tokens(feed.rows), feed.activations, left))
        if TIMES in chain.head.features:
            # Time spent waiting for this chain's previous passes, or for the next link, is not this stage's.
            held_s, came_s = self._clock() - taken_s, feed.came_s
            chain.head.post(
                Passed(
                    feed.number,
                    round(1e6 * min(MAX_HELD_S, held_s)),
                    is_left_out=False,
                    came_us=None if came_s is None else round(1e6 * min(MAX_HELD_S, came_s)),
                )
            )
        if chain.next is not None and isinstance(found, bytes):
            for message in feed_messages(feed.number, feed.rows, found):
                await chain.next.send(message)
        if chain.next is not None or not isinstance(found, list):
            return
        if not chain.head.post(Results(feed.number, tuple(map(answer_of, found)))):
            raise PeerError(ErrorCode.OVERLOADED, "the head reads too slowly")

    async def _answer(self, chain: ServedChain, probe: Probe) -> None:
        """Report the input and output of some passes. Raises `PeerError`, `MalformedMessage`."""
        try:
            computed = chain.computed.take(probe.parts)
        except TooManyProbes as error:
            raise PeerError(ErrorCode.OVERLOADED, str(error)) from None

        def told(activations: bytes | bytearray | None, part: FeedPart) -> bytes:
            if activations is None:
                return b""
            size = self._host.token_bytes
            wanted = memoryview(activations)[part.first * size : (part.first + part.tokens) * size]
            return project(wanted, tokens=part.tokens, numerics=self._host.numerics, seed=probe.seed)

        def trace(feed: ComputedFeed | None, part: FeedPart) -> PartTrace:
            if feed is None:
                return PartTrace(b"", b"")
            return PartTrace(told(feed.entered, part), told(feed.left, part))

        traces = await self._run(lambda: tuple(map(trace, computed, probe.parts)))
        if not chain.head.post(Probed(traces)):
            raise PeerError(ErrorCode.OVERLOADED, "the head reads too slowly")

    async def _compute(self, chain: ServedChain, feed: QueuedFeed) -> bytes | list[RowResult]:
        """Run and count one pass. Raises the errors of `ChainBooks.run`."""

        def work() -> tuple[bytes | list[RowResult], float, float]:
            # In the engine's thread, so that waiting for it does not count.
            began_s = time.monotonic()
            found = chain.hosted.run(feed.rows, feed.activations)
            time.sleep((time.monotonic() - began_s) * (1.0 / self._share - 1.0))
            if self._least_s is not None:
                time.sleep(max(0.0, began_s + self._least_s(count_tokens(feed.rows)) - time.monotonic()))
            return found, began_s, time.monotonic()

        found, began_s, ended_s = await self._run(work)
        tokens = count_tokens(feed.rows)
        self.progress.steps += 1
        self.busy.note(began_s=began_s, ended_s=ended_s)
        self.counts.fed_tokens += tokens
        self.counts.note_pass(seconds=ended_s - began_s, rows=len(feed.rows))
        self._note_pass(tokens, ended_s - began_s)
        return found

    async def _run(self, work: Callable[[], _T]) -> _T:
        """Run work in the engine's thread; wait for its end even if the chain ends meanwhile."""
        found: list[_T] = []
        errors: list[CosineError] = []

        def call() -> None:
            # Raised below, since here it would be lost if the chain has ended.
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
