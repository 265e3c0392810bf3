"""An in-memory network with the interface of the real one: for tests, simulations and examples."""

import asyncio
from collections import deque

from cosine_p2p.transport.base import StreamHandler
from cosine_protocol.errors import PeerLost


class _Pipe:
    """One direction: bytes become readable `delay_s` after they were written, in order."""

    def __init__(self, delay_s: float) -> None:
        self.delay_s = delay_s
        self._flying: deque[bytes] = deque()
        self._chunks: deque[bytes] = deque()
        self._ready = asyncio.Event()
        self._ended = False

    def put(self, data: bytes) -> None:
        # Timers of equal time fire in any order, so what arrives is the oldest in flight, not this timer's own.
        self._flying.append(data)
        asyncio.get_running_loop().call_later(self.delay_s, self._arrive)

    def end(self) -> None:
        self.put(b"")

    def cut(self) -> None:
        self._ended = True
        self._ready.set()

    def _arrive(self) -> None:
        data = self._flying.popleft()
        if not data:
            self.cut()
        elif not self._ended:
            self._chunks.append(data)
            self._ready.set()

    async def get(self) -> bytes:
        while not self._chunks:
            if self._ended:
                return b""
            self._ready.clear()
            await self._ready.wait()
        return self._chunks.popleft()


class MemoryStream:
    """One end of a pair of pipes."""

    def __init__(self, peer_id: str, inbound: _Pipe, outbound: _Pipe) -> None:
        self.peer_id = peer_id
        self._inbound = inbound
        self._outbound = outbound
        self._closed = False

    async def read(self) -> bytes:
        return await self._inbound.get()

    async def write(self, data: bytes) -> None:
        if self._closed:
            raise PeerLost(self.peer_id, "the stream is closed")
        self._outbound.put(data)

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._inbound.cut()
            self._outbound.end()


class MemoryNetwork:
    """A set of transports that reach each other; `one_way_s` delays every byte."""

    def __init__(self, *, one_way_s: float = 0.0) -> None:
        self.one_way_s = one_way_s
        self.transports: dict[str, MemoryTransport] = {}

    def join(self, peer_id: str) -> "MemoryTransport":
        """A new transport in this network."""
        transport = MemoryTransport(peer_id, self)
        self.transports[peer_id] = transport
        return transport


class MemoryTransport:
    """A peer of a `MemoryNetwork`."""

    def __init__(self, peer_id: str, network: MemoryNetwork) -> None:
        self.peer_id = peer_id
        self._network = network
        self._handlers: dict[str, StreamHandler] = {}
        self._streams: list[MemoryStream] = []
        self._tasks: set[asyncio.Task[None]] = set()

    async def serve(self, protocol: str, handler: StreamHandler) -> None:
        self._handlers[protocol] = handler

    async def dial(self, peer_id: str, protocol: str) -> MemoryStream:
        other = self._network.transports.get(peer_id)
        if other is None:
            raise PeerLost(peer_id, "no such peer")
        if protocol not in other._handlers:
            raise PeerLost(peer_id, f"it does not serve {protocol}")
        there, back = _Pipe(self._network.one_way_s), _Pipe(self._network.one_way_s)
        ours = MemoryStream(peer_id, back, there)
        self._streams.append(ours)
        other._accept(protocol, MemoryStream(self.peer_id, there, back))
        return ours

    async def close(self) -> None:
        self.vanish()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def vanish(self) -> None:
        """Leave as a killed process does: every stream ends, nothing is said."""
        self._network.transports.pop(self.peer_id, None)
        for stream in self._streams:
            stream.close()
        self._streams.clear()

    def _accept(self, protocol: str, stream: MemoryStream) -> None:
        self._streams.append(stream)
        task = asyncio.ensure_future(self._handlers[protocol](stream))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
