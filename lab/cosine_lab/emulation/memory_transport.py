"""An in-memory network with the interface of the real one: for tests, simulations and examples."""

import asyncio
import math
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import Final, Protocol
from weakref import WeakValueDictionary

from cosine_lab.emulation.round_trips import AT_ONCE, Openings, RoundTrips
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


@dataclass(frozen=True, slots=True)
class _RelayedRoute:
    """One way after the other: to a relay and on from it."""

    first: Route
    second: Route

    def arrival_s(self, now_s: float, size_bytes: int) -> float:
        at_relay_s = self.first.arrival_s(now_s, size_bytes)
        return self.second.arrival_s(at_relay_s, size_bytes) if at_relay_s < math.inf else math.inf


class _Pipe:
    """One direction: bytes become readable when their route says so, in the order they were written.

    `note_heard` is called whenever something arrives.
    """

    def __init__(
        self, route: Route, window_bytes: float, note_heard: Callable[[], None], *, packet_bytes: float = math.inf
    ) -> None:
        self._packet_bytes = packet_bytes
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
        """How much of what is written goes at once."""
        return max(1, int(min(len(data), self._window_bytes, self._packet_bytes)))

    async def room(self) -> None:
        """Wait until less is unread than the window, or nobody reads any more."""
        while self._unread_bytes >= self._window_bytes and not self._ended:
            self._has_room.clear()
            await self._has_room.wait()

    def open(self) -> float:
        """When the news of the stream is at the other end."""
        self._newest_s = self._route.arrival_s(asyncio.get_running_loop().time(), 0)
        return self._newest_s

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

    Every byte is delayed by `one_way_s`. With `routes`, a function of the sending and the receiving peer's id asked
    twice for each dial, every direction of a stream has a route of its own. A dial takes as many round trips as
    `round_trips` says of the peer that dials, by default none, and fails after `dial_timeout_s`; a connection once
    made is kept until a peer leaves. The peers in `relays` are reached through the one named there.
    What a route holds back is delivered when the route lets it pass: streams are never cut. `is_reachable`
    says whether the first peer can open streams to the second, as it cannot through most home routers. A write
    waits while `window_bytes` or more of a stream are unread, and comes in pieces of
    `packet_bytes`. Peers are seen at their `addresses`.
    """

    def __init__(
        self,
        *,
        one_way_s: float = 0.0,
        routes: Routes | None = None,
        round_trips: Callable[[str], RoundTrips] = lambda peer_id: AT_ONCE,
        relays: Mapping[str, str] = MappingProxyType({}),
        is_reachable: Callable[[str, str], bool] | None = None,
        dial_timeout_s: float = DIAL_TIMEOUT_S,
        window_bytes: float = math.inf,
        packet_bytes: float = math.inf,
    ) -> None:
        self.one_way_s = one_way_s
        self.window_bytes = window_bytes
        self.packet_bytes = packet_bytes
        self.transports: dict[str, MemoryTransport] = {}
        self.addresses: dict[str, str] = {}
        self._routes = routes or (lambda source, target: _SteadyRoute(self.one_way_s))
        self._round_trips = round_trips
        self._relays = relays
        self._openings: dict[str, Openings] = {}
        self._connecting = WeakValueDictionary[tuple[str, str], asyncio.Lock]()
        self._is_reachable = is_reachable
        self._dial_timeout_s = dial_timeout_s

    def join(self, peer_id: str, gate: PeerGate | None = None) -> "MemoryTransport":
        """A new transport in this network, which talks to whom `gate` lets through."""
        transport = MemoryTransport(peer_id, self, gate or PeerGate())
        self.transports[peer_id] = transport
        return transport

    async def connect(self, source: str, target: str) -> tuple[Route, Route]:
        """The routes there and back of a new stream, once there is a connection and the stream may be written to.

        Raises `PeerLost` after `dial_timeout_s` if `target` cannot be reached in that time.
        """
        # Who dials a peer that is being connected to waits for that.
        async with self._connecting.setdefault((source, target), asyncio.Lock()):
            return await self._connect(source, target)

    async def _connect(self, source: str, target: str) -> tuple[Route, Route]:
        relay = self._relays.get(target)
        there, back = self._way(source, target, relay), self._way(target, source, relay)
        openings, began_s = self._openings_of(source), _now_s()
        is_new = not openings.has(target)
        to_relay, whole = openings.round_trips(target, now_s=began_s, relay=relay)
        ready_s = began_s
        if relay is not None and is_new:
            ready_s += openings.counts.circuit_wait_s
            ways = self._routes(source, relay), self._routes(relay, source)
            ready_s = _after(ready_s, to_relay, *ways)
        ready_s = _after(ready_s, whole, there, back)
        if self._is_reachable is not None and not self._is_reachable(source, target):
            ready_s = math.inf
        if ready_s > began_s:
            await asyncio.sleep(min(ready_s - began_s, self._dial_timeout_s))
        if ready_s - began_s > self._dial_timeout_s:
            raise PeerLost(target, f"no answer to our dial within {self._dial_timeout_s:g} s")
        for other in (target, relay) if is_new else ():
            if other in self.transports:
                self._openings_of(source).connect(other, _now_s())
                self._openings_of(other).connect(source, _now_s())
        return there, back

    def note_heard(self, peer_id: str, other: str) -> None:
        """Something came to a peer from another one."""
        self._openings_of(peer_id).note_heard(other, _now_s())

    def forget(self, peer_id: str) -> None:
        """A peer has left, and its connections have ended."""
        self.transports.pop(peer_id, None)
        openings = self._openings.pop(peer_id, None)
        for other in openings.peers if openings is not None else ():
            self._openings_of(other).forget(peer_id)

    def _openings_of(self, peer_id: str) -> Openings:
        if peer_id not in self._openings:
            self._openings[peer_id] = Openings(self._round_trips(peer_id))
        return self._openings[peer_id]

    def _way(self, source: str, target: str, relay: str | None) -> Route:
        if relay is None:
            return self._routes(source, target)
        return _RelayedRoute(self._routes(source, relay), self._routes(relay, target))


def _now_s() -> float:
    return asyncio.get_running_loop().time()


def _after(began_s: float, round_trips: int, there: Route, back: Route) -> float:
    """The time after `round_trips` round trips, one after the other; `math.inf` if one never ends."""
    ready_s = began_s
    for _ in range(round_trips):
        arrived_s = there.arrival_s(ready_s, 0)
        ready_s = back.arrival_s(arrived_s, 0) if arrived_s < math.inf else math.inf
        if ready_s == math.inf:
            break
    return ready_s


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
        make = partial(_Pipe, packet_bytes=network.packet_bytes)
        there = make(routes[0], network.window_bytes, partial(network.note_heard, peer_id, self.peer_id))
        back = make(routes[1], network.window_bytes, partial(network.note_heard, self.peer_id, peer_id))
        ours = MemoryStream(peer_id, back, there)
        self._streams.append(ours)
        known_s, theirs = there.open(), MemoryStream(self.peer_id, there, back)
        if known_s <= _now_s():
            other._accept(protocol, theirs)
        elif known_s < math.inf:
            asyncio.get_running_loop().call_at(known_s, other._accept, protocol, theirs)
        return await self._gate.enter(ours)

    async def connect(self, peer_id: str) -> None:
        """Have a connection to a peer. Raises `PeerLost`."""
        await self._network.connect(self.peer_id, peer_id)
        if peer_id not in self._network.transports:
            raise PeerLost(peer_id, "no such peer")

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
