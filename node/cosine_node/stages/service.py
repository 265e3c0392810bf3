"""The stage service: it admits the chains that heads set up, and gives each a part of the pool.

Theory of operation
-------------------
A head opens a stream with `Join`, and the stage dials the next one and sends `Follow`; the stage before does the
same here. A chain (`served_chain`) lives as long as its head's stream and the streams between stages, and ends as a
whole, with a reason for the head.

Room is scarce and keys are free, so one head has at most half of the pool, and the working heads of one address
range three quarters. A working head never loses its room. An idle one keeps it until another one asks; after a head
has held room without any work, it and others of its address range count as idle from the start for a while.
"""

import asyncio
import logging
import math
from contextlib import AsyncExitStack
from typing import Final

from cosine_engine.base import OutOfPages
from cosine_engine.kv_pool import PAGE_TOKENS
from cosine_engine.pool_size import USUAL_TOKENS
from cosine_node.stages.passes import StagePasses
from cosine_node.stages.proof import VALUE_BYTES
from cosine_node.stages.served_chain import RETRY_AFTER_S, ChainBooks, ChainHost, ServedChain
from cosine_p2p.storage.memory import Remembered
from cosine_p2p.transport.addresses import range_of
from cosine_p2p.transport.base import Stream, Transport
from cosine_p2p.transport.channel import MAX_SENTENCE, READ_BURST, READ_RATE, SILENCE_S, Channel
from cosine_p2p.transport.patience import end_all
from cosine_p2p.trust.call_budget import CallBudget
from cosine_protocol.errors import ErrorCode, MalformedMessage, PeerError, PeerLost, RemoteProtocolError
from cosine_protocol.stage import PROBES, STAGE, Follow, Join, Joined
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
READ_FACTOR: Final = 32
"""125 MiB of activations a second, the speed of a gigabit link. The inbox bounds what is read."""
IDLERS_S: Final = 60.0
"""Memory of peers that held room without work. Such a peer blocks others for at most `FRESH_S` of 65 s (with half
of it, of 35 s); meanwhile honest heads of its address range have no `FRESH_S`."""
MAX_IDLERS: Final = 1024
"""Bounds memory."""


class StageService:
    """Serves `/cosine/stage`."""

    def __init__(
        self,
        host: ChainHost,
        *,
        transport: Transport,
        target_digest: bytes,
        passes: StagePasses,
        inbox_bytes: int = INBOX_BYTES,
    ) -> None:
        self._host = host
        self._transport = transport
        self._target_digest = target_digest
        self.passes = passes
        self.progress = passes.progress
        self._inbox_bytes = inbox_bytes
        self._reads = CallBudget(peer_rate=READ_FACTOR * READ_RATE, peer_burst=READ_FACTOR * READ_BURST)
        self._chains: dict[bytes, ServedChain] = {}
        self._idlers = Remembered[str, bool](MAX_IDLERS, forgotten_s=IDLERS_S)
        # Metrics are read in another thread.
        self._now_s = asyncio.get_running_loop().time
        self._is_draining = False
        self._is_resting = False
        self._has_ended = asyncio.Event()

    @property
    def requests(self) -> int:
        """The number of chains served now, which is the load of the node."""
        return len(self._chains)

    @property
    def room_tokens(self) -> int:
        """The tokens that a new head's chain may have, with the room of idle chains."""
        idle = [chain.hosted.number for chain in self._idle()]
        return min(self._host.free_tokens(without=idle), self._peer_tokens) // PAGE_TOKENS * PAGE_TOKENS

    def _idle(self) -> list[ServedChain]:
        """The idle chains, whose room other heads may take; the longest idle first."""
        now_s = self._now_s()
        # A list, since metrics are read in another thread.
        idle = [chain for chain in list(self._chains.values()) if chain.is_idle(now_s)]
        return sorted(idle, key=lambda chain: (chain.since_s, chain.join.chain))

    @property
    def _peer_tokens(self) -> int:
        """The limit of one peer's chains together: half of the pool, or room for one usual request."""
        return max(self._host.pool_tokens // 2, min(self._host.pool_tokens, USUAL_TOKENS))

    @property
    def waiting_bytes(self) -> int:
        """The approximate size of the operations that wait for the engine."""
        return sum(chain.inbox.bytes for chain in list(self._chains.values()))

    async def start(self) -> None:
        """Begin to accept streams."""
        await self._transport.serve(STAGE, self.handle)

    async def run(self) -> None:
        """Wait until cancelled; streams do all the work."""
        await asyncio.Event().wait()

    def rest(self, is_resting: bool) -> None:
        """Refuse new chains while `is_resting`; the present ones continue."""
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
        chain = self._chains[join.chain] = self._open(head, join, network)
        tasks: list[asyncio.Task[None]] = []
        async with AsyncExitStack() as stack:
            try:
                tasks = chain.begin(None if join.target is None else await self._dial(join, stack))
                done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
                for ended in done:
                    await ended
            except PeerError as error:
                # The head must receive this before the next stage reports the loss of this one.
                self._tell(head, error)
            finally:
                chain.ended.set()
                await end_all(tasks)
                # No pass of it runs any more, so its slots are free.
                chain.hosted.close()
                del self._chains[join.chain]
                self._note_ended(chain)
                self._has_ended.set()

    def _open(self, head: Channel, join: Join, network: str) -> ServedChain:
        """A new chain with a separate pool. Raises `PeerError`."""
        self._check(head, join)
        books = self._room(head.peer_id, join, network)
        self.passes.counts.opened += 1
        chain = ServedChain(join, head, network, books, self._host, self.passes, self._inbox_bytes)
        now_s, own = self._now_s(), [each for each in self._chains.values() if each.head.peer_id == head.peer_id]
        is_idler = self._idlers.get(head.peer_id, now_s) and not any(each.has_worked for each in own)
        if is_idler or self._idlers.get(network, now_s):
            chain.since_s = -math.inf
        return chain

    def _note_ended(self, chain: ServedChain) -> None:
        """Remember the heads that held room without work."""
        if chain.has_worked:
            self._idlers.pop(chain.head.peer_id)
            return
        for name in filter(None, (chain.head.peer_id, chain.network)):
            self._idlers.note(name, value=True, now_s=self._now_s())

    def _check(self, head: Channel, join: Join) -> None:
        """Raise `PeerError` for a chain that cannot be served here, or not now."""
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

    def _room(self, peer_id: str, join: Join, network: str) -> ChainBooks:
        """Reserve room for a chain, if necessary of idle chains. Raises `PeerError`."""
        idle = self._idle()
        chains = self._chains.values()
        own_tokens = [chain.join.pool_tokens for chain in chains if chain.head.peer_id == peer_id]
        if len(own_tokens) >= MAX_PEER_CHAINS or (len(chains) >= MAX_CHAINS and not idle):
            raise _overloaded("too many chains are served")
        asked_tokens = sum(own_tokens) + join.pool_tokens
        if asked_tokens > self._peer_tokens:
            raise _overloaded(f"one head may have {self._peer_tokens} token slots, not {asked_tokens}")
        near = [chain.join.pool_tokens for chain in chains if network == chain.network != "" and chain not in idle]
        near_tokens = max(self._peer_tokens, int(NETWORK_SHARE * self._host.pool_tokens))
        if sum(near) + join.pool_tokens > near_tokens or len(near) >= NETWORK_SHARE * MAX_CHAINS:
            raise _overloaded(f"the heads of one network may have {near_tokens} token slots together")
        is_enough = self._host.free_tokens(without=[chain.hosted.number for chain in idle]) >= join.pool_tokens
        if len(chains) >= MAX_CHAINS:
            idle.pop(0).send_away()
        while True:
            try:
                return self._host.open(pool_tokens=join.pool_tokens, first_sequence=join.first_sequence)
            except OutOfPages as error:
                if not (idle and is_enough):
                    raise _overloaded(str(error)) from None
            idle.pop(0).send_away()

    async def _dial(self, join: Join, stack: AsyncExitStack) -> Channel:
        """Open the stream to the next stage. Raises `PeerError`."""
        assert join.target is not None
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
        await chain.follow(channel)


def _overloaded(sentence: str) -> PeerError:
    return PeerError(ErrorCode.OVERLOADED, sentence, RETRY_AFTER_S)
