"""An in-memory network with the interface of the real one: for tests, simulations and examples."""

import asyncio
import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Protocol

from cosine_p2p.transport.base import Stream, StreamHandler
from cosine_p2p.transport.peer_gate import PeerGate
from cosine_protocol.errors import PeerLost

DIAL_TIMEOUT_S: Final = 4.0
"""As on the real network."""


class Route(Protocol):
    """The way of one stream's bytes in one direction."""

    def arrival_s(self, now_s: float, size_bytes: int) -> float:
        """When `size_bytes` written at `now_s` are readable at the other end; `math.inf` for never.

        Asked once for each write, in order of time; a size of 0 is the opening or the end of a stream.
        """
        ...


Routes = Callable[[str, str], Route]


@dataclass(frozen=True, slots=True)
class _SteadyRoute:
    one_way_s: float

    def arrival_s(self, now_s: float, size_bytes: int) -> float:
        return now_s + self.one_way_s


class _Pipe:
    """One direction: bytes become readable when their route says so, in the order they were written."""

    def __init__(self, route: Route, window_bytes: float) -> None:
        self._route = route
        self._window_bytes = window_bytes
        self._unread_bytes = 0
        self._has_room = asyncio.Event()
        self._newest_s = 0.0
        self._flying: deque[bytes] = deque()
        self._chunks: deque[bytes] = deque()
        self._ready = asyncio.Event()
        self._ended = False

    def piece_bytes(self, data: bytes) -> int:
        """How much of what is written goes at once."""
        return max(1, int(min(len(data), self._window_bytes)))

    async def room(self) -> None:
        """Wait until less is unread than the window, or nobody reads any more."""
        while self._unread_bytes >= self._window_bytes and not self._ended:
            self._has_room.clear()
            await self._has_room.wait()

    def put(self, data: bytes) -> None:
        self._unread_bytes += len(data)
        loop = asyncio.get_running_loop()
        self._newest_s = max(self._newest_s, self._route.arrival_s(loop.time(), len(data)))
        # Timers of equal time fire in any order, so what arrives is the oldest in flight, not this timer's own.
        self._flying.append(data)
        if self._newest_s < math.inf:
            loop.call_at(self._newest_s, self._arrive)

    def end(self) -> None:
        self.put(b"")

    def cut(self) -> None:
        self._ended = True
        self._ready.set()
        self._has_room.set()

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
        data = self._chunks.popleft()
        self._unread_bytes -= len(data)
        self._has_room.set()
        return data


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
        size = self._outbound.piece_bytes(data)
        for start in range(0, len(data), size):
            await self._outbound.room()
            self._outbound.put(data[start : start + size])

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._inbound.cut()
            self._outbound.end()

    def note_flood(self) -> None:
        return


class MemoryNetwork:
    """A set of transports that reach each other.

    Every byte is delayed by `one_way_s`, and dials succeed at once. With `routes`, a function of the sending and
    the receiving peer's id asked twice for each dial, every direction of a stream has a route of its own; a dial
    then takes the round trip of its first packet and fails after `dial_timeout_s` if that has not returned.
    What a route holds back is delivered when the route lets it pass: streams are never cut. `is_reachable`
    says whether the first peer can open streams to the second, as it cannot through most home routers. A write
    waits while `window_bytes` or more of a stream are unread. Peers are seen at their `addresses`.
    """

    def __init__(
        self,
        *,
        one_way_s: float = 0.0,
        routes: Routes | None = None,
        is_reachable: Callable[[str, str], bool] | None = None,
        dial_timeout_s: float = DIAL_TIMEOUT_S,
        window_bytes: float = math.inf,
    ) -> None:
        self.one_way_s = one_way_s
        self.window_bytes = window_bytes
        self.transports: dict[str, MemoryTransport] = {}
        self.addresses: dict[str, str] = {}
        self._routes = routes
        self._is_reachable = is_reachable
        self._dial_timeout_s = dial_timeout_s

    def join(self, peer_id: str, gate: PeerGate | None = None) -> "MemoryTransport":
        """A new transport in this network, which talks to whom `gate` lets through."""
        transport = MemoryTransport(peer_id, self, gate or PeerGate())
        self.transports[peer_id] = transport
        return transport

    async def connect(self, source: str, target: str) -> tuple[Route, Route]:
        """The routes there and back of a new stream, once its first packet has been there and back.

        Raises `PeerLost` after `dial_timeout_s` if `target` cannot be reached in that time.
        """
        if self._routes is None:
            there: Route = _SteadyRoute(self.one_way_s)
            back, waited_s = there, 0.0
        else:
            there, back = self._routes(source, target), self._routes(target, source)
            now_s = asyncio.get_running_loop().time()
            arrived_s = there.arrival_s(now_s, 0)
            waited_s = back.arrival_s(arrived_s, 0) - now_s if arrived_s < math.inf else math.inf
        if self._is_reachable is not None and not self._is_reachable(source, target):
            waited_s = math.inf
        if waited_s > 0:
            await asyncio.sleep(min(waited_s, self._dial_timeout_s))
        if waited_s > self._dial_timeout_s:
            raise PeerLost(target, f"no answer to our dial within {self._dial_timeout_s:g} s")
        return there, back


class MemoryTransport:
    """A peer of a `MemoryNetwork`."""

    def __init__(self, peer_id: str, network: MemoryNetwork, gate: PeerGate) -> None:
        self.peer_id = peer_id
        self._gate = gate
        self._network = network
        self._handlers: dict[str, StreamHandler] = {}
        self._streams: list[MemoryStream] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._has_left = False

    async def serve(self, protocol: str, handler: StreamHandler) -> None:
        self._handlers[protocol] = handler

    async def dial(self, peer_id: str, protocol: str) -> Stream:
        self._gate.check_dial(peer_id)
        routes = await self._network.connect(self.peer_id, peer_id)
        other = self._network.transports.get(peer_id)
        if other is None:
            raise PeerLost(peer_id, "no such peer")
        if protocol not in other._handlers:
            raise PeerLost(peer_id, f"it does not serve {protocol}")
        if self._has_left:
            raise PeerLost(peer_id, "we have left the network")
        there, back = (_Pipe(route, self._network.window_bytes) for route in routes)
        ours = MemoryStream(peer_id, back, there)
        self._streams.append(ours)
        other._accept(protocol, MemoryStream(self.peer_id, there, back))
        return await self._gate.enter(ours)

    async def address_of(self, peer_id: str) -> str:
        return self._network.addresses.get(peer_id, "")

    async def close(self) -> None:
        self.vanish()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def vanish(self) -> None:
        """Leave as a killed process does: every stream ends, nothing is said."""
        self._has_left = True
        self._network.transports.pop(self.peer_id, None)
        for stream in self._streams:
            stream.close()
        self._streams.clear()

    def _accept(self, protocol: str, stream: MemoryStream) -> None:
        self._streams.append(stream)
        task = asyncio.ensure_future(self._handle(stream, self._handlers[protocol]))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _handle(self, stream: MemoryStream, handler: StreamHandler) -> None:
        admitted = await self._gate.admit(stream)
        if admitted is not None:
            await handler(admitted)
