"""An in-memory network with the interface of the real one."""

import asyncio
import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Final, Protocol
from weakref import WeakValueDictionary

from cosine_lab.emulation.round_trips import AT_ONCE, Openings, RoundTrips
from cosine_p2p.transport.base import Stream, StreamHandler
from cosine_p2p.transport.peer_gate import PeerGate
from cosine_protocol.errors import PeerLost

DIAL_TIMEOUT_S: Final = 4.0
"""The timeout of the real network."""


class Route(Protocol):
    """One direction of a stream."""

    def arrival_s(self, now_s: float, size_bytes: int) -> float:
        """Return the time at which `size_bytes` written at `now_s` can be read; `math.inf` for never.

        Called once for each write, in order of time. A size of 0 opens or ends a stream.
        """
        ...


Routes = Callable[[str, str], Route]


@dataclass(frozen=True, slots=True)
class _SteadyRoute:
    one_way_s: float

    def arrival_s(self, now_s: float, size_bytes: int) -> float:
        return now_s + self.one_way_s


class _Pipe:
    """One direction of a stream: bytes arrive in order, at the route's times, which calls `note_heard`."""

    def __init__(self, route: Route, window_bytes: float, note_heard: Callable[[], None]) -> None:
        self._route = route
        self._window_bytes = window_bytes
        self._note_heard = note_heard
        self._unread_bytes = 0
        self._has_room = asyncio.Event()
        self._newest_s = 0.0
        self._flying: deque[bytes] = deque()
        self._chunks: deque[bytes] = deque()
        self._ready = asyncio.Event()
        self._ended = False

    def piece_bytes(self, data: bytes) -> int:
        """Return the number of bytes of a write that are sent at once."""
        return max(1, int(min(len(data), self._window_bytes)))

    async def room(self) -> None:
        """Wait until less than the window is unread, or the reader is gone."""
        while self._unread_bytes >= self._window_bytes and not self._ended:
            self._has_room.clear()
            await self._has_room.wait()

    def open(self) -> float:
        """Return the time at which the other end learns of the stream."""
        self._newest_s = self._route.arrival_s(asyncio.get_running_loop().time(), 0)
        return self._newest_s

    def put(self, data: bytes) -> None:
        self._unread_bytes += len(data)
        loop = asyncio.get_running_loop()
        self._newest_s = max(self._newest_s, self._route.arrival_s(loop.time(), len(data)))
        # Timers of equal time fire in any order, so each delivers the oldest write in flight, not its own.
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
        self._note_heard()
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
    """One end of a stream."""

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
    """A set of transports that can dial each other.

    one_way_s: delay of every byte.
    routes: function from sending and receiving peer id to the route of a new stream, in place of `one_way_s`.
    round_trips: round trips of a dial, by dialling peer. Default: none. Connections last until a peer leaves.
    window_bytes: unread bytes of a stream above which writes wait.

    Peers are seen at their `addresses`. A route delays data but never cuts a stream.
    """

    def __init__(
        self,
        *,
        one_way_s: float = 0.0,
        routes: Routes | None = None,
        round_trips: Callable[[str], RoundTrips] = lambda peer_id: AT_ONCE,
        window_bytes: float = math.inf,
    ) -> None:
        self.one_way_s = one_way_s
        self.window_bytes = window_bytes
        self.transports: dict[str, MemoryTransport] = {}
        self.addresses: dict[str, str] = {}
        self._routes = routes or (lambda source, target: _SteadyRoute(self.one_way_s))
        self._round_trips = round_trips
        self._openings: dict[str, Openings] = {}
        self._connecting = WeakValueDictionary[tuple[str, str], asyncio.Lock]()

    def join(self, peer_id: str, gate: PeerGate | None = None) -> "MemoryTransport":
        """Return a new transport in this network, with the streams that `gate` admits."""
        transport = MemoryTransport(peer_id, self, gate or PeerGate())
        self.transports[peer_id] = transport
        return transport

    async def connect(self, source: str, target: str) -> tuple[Route, Route]:
        """Return the routes of a new stream there and back, once it is open.

        Raises `PeerLost` if that takes more than `DIAL_TIMEOUT_S`.
        """
        # A dial waits for another one that connects the same peers.
        async with self._connecting.setdefault((source, target), asyncio.Lock()):
            there, back = self._routes(source, target), self._routes(target, source)
            began_s = ready_s = _now_s()
            openings = self._openings_of(source)
            is_new = target not in openings.peers
            for _ in range(openings.round_trips(target, now_s=began_s)):
                arrived_s = there.arrival_s(ready_s, 0)
                ready_s = back.arrival_s(arrived_s, 0) if arrived_s < math.inf else math.inf
                if ready_s == math.inf:
                    break
            if ready_s > began_s:
                await asyncio.sleep(min(ready_s - began_s, DIAL_TIMEOUT_S))
            if ready_s - began_s > DIAL_TIMEOUT_S:
                raise PeerLost(target, f"no answer to our dial within {DIAL_TIMEOUT_S:g} s")
            if is_new and target in self.transports:
                self._openings_of(source).connect(target, _now_s())
                self._openings_of(target).connect(source, _now_s())
            return there, back

    def note_heard(self, peer_id: str, other: str) -> None:
        """Note that data of another peer arrived at a peer."""
        self._openings_of(peer_id).note_heard(other, _now_s())

    def forget(self, peer_id: str) -> None:
        """Remove a peer that has left, and its connections."""
        self.transports.pop(peer_id, None)
        openings = self._openings.pop(peer_id, None)
        for other in openings.peers if openings is not None else ():
            self._openings_of(other).forget(peer_id)

    def _openings_of(self, peer_id: str) -> Openings:
        if peer_id not in self._openings:
            self._openings[peer_id] = Openings(self._round_trips(peer_id))
        return self._openings[peer_id]


def _now_s() -> float:
    return asyncio.get_running_loop().time()


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
        network = self._network
        heard_there = partial(network.note_heard, peer_id, self.peer_id)
        heard_here = partial(network.note_heard, self.peer_id, peer_id)
        there = _Pipe(routes[0], network.window_bytes, heard_there)
        back = _Pipe(routes[1], network.window_bytes, heard_here)
        ours = MemoryStream(peer_id, back, there)
        self._streams.append(ours)
        known_s, theirs = there.open(), MemoryStream(self.peer_id, there, back)
        if known_s <= _now_s():
            other._accept(protocol, theirs)
        elif known_s < math.inf:
            asyncio.get_running_loop().call_at(known_s, other._accept, protocol, theirs)
        return await self._gate.enter(ours)

    async def address_of(self, peer_id: str) -> str:
        return self._network.addresses.get(peer_id, "")

    async def close(self) -> None:
        self.vanish()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def vanish(self) -> None:
        """Leave as a killed process does: every stream ends without a message."""
        self._has_left = True
        self._network.forget(self.peer_id)
        for stream in self._streams:
            stream.close()
        self._streams.clear()

    def _accept(self, protocol: str, stream: MemoryStream) -> None:
        if self._has_left:
            stream.close()
            return
        self._streams.append(stream)
        task = asyncio.ensure_future(self._handle(stream, self._handlers[protocol]))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _handle(self, stream: MemoryStream, handler: StreamHandler) -> None:
        admitted = await self._gate.admit(stream)
        if admitted is not None:
            await handler(admitted)
