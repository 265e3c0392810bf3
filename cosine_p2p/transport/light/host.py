"""The connections of a light client: dialled over TCP or through relays, one for each peer, and kept.

py-libp2p's own host is not used: it tries one address of a peer, with a delay of 0.25 s, refuses to retry for a
minute, and offers services. Everything here runs in the trio thread.
"""

import logging
import os
import socket
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Final, TypeVar
from weakref import WeakValueDictionary

import trio

from cosine_p2p.transport.addresses import Address, DialPolicy
from cosine_p2p.transport.light.connection import Connection, NotServed, Proposed, Unreachable, secure
from cosine_p2p.transport.light.library import (
    ID,
    Ed25519PrivateKey,
    HopMessage,
    KeyPair,
    NoiseTransport,
    RawConnection,
    Status,
    TrioTCPStream,
    encode_varint_prefixed,
    new_noise_keys,
    read_varint_prefixed_bytes_limited,
)
from cosine_protocol.errors import PeerLost

logger = logging.getLogger(__name__)

MAX_CONNECTIONS: Final = 128  # Bounds open sockets; idle connections are closed.
MAX_ATTEMPTS: Final = 6  # Bounds the addresses of one peer that are dialled at once.
MAX_DIALS: Final = 48  # Bounds concurrent dials: all addresses of eight peers.
RELAY_WAIT_S: Final = 0.5  # The delay of dials to relays; direct addresses are tried first.
_HOP: Final = "/libp2p/circuit/relay/0.2.0/hop"  # circuit relay v2

_T = TypeVar("_T")


class LightHost:
    """Dials `given` addresses and those that `policy` permits, with the Ed25519 key of `seed`."""

    def __init__(
        self,
        seed: bytes,
        spawn: Callable[[Callable[[], Awaitable[None]]], None],
        *,
        dial_timeout_s: float,
        given: Sequence[Address],
        policy: DialPolicy,
    ) -> None:
        key = Ed25519PrivateKey.from_bytes(seed)
        pair = KeyPair(key, key.get_public_key())
        self._noise = NoiseTransport(pair, noise_privkey=new_noise_keys().private_key)
        self._spawn = spawn
        self._dial_timeout_s = dial_timeout_s
        self._given = frozenset(given)
        self._policy = policy
        self._sockets = trio.CapacityLimiter(MAX_DIALS)
        self._connections: dict[str, Connection] = {}
        # A lock disappears with the last task that waits for it.
        self._dialling = WeakValueDictionary[str, trio.Lock]()

    async def open(self, peer_id: str, addresses: Sequence[Address], protocol: str) -> Proposed:
        """Open a stream to a peer. Raises `PeerLost` with the reason, at the latest after the dial timeout."""

        async def work() -> Proposed:
            stream = await self._open_on_known(peer_id, protocol)
            return stream or await (await self._connected(peer_id, addresses)).open(protocol)

        return await self._in_time(peer_id, work)

    async def connect(self, peer_id: str, addresses: Sequence[Address]) -> None:
        """Connect to a peer. Raises as `open`."""
        await self._in_time(peer_id, partial(self._connected, peer_id, addresses))

    def address_of(self, peer_id: str) -> str:
        """The multiaddr of the connection to a peer, or to its relay; "" without one."""
        connection = self._live(peer_id)
        return connection.maddr if connection is not None else ""

    async def _in_time(self, peer_id: str, work: Callable[[], Awaitable[_T]]) -> _T:
        try:
            with trio.move_on_after(self._dial_timeout_s):
                return await work()
        except Unreachable as error:
            raise PeerLost(peer_id, str(error)) from None
        raise PeerLost(peer_id, f"no answer within {self._dial_timeout_s:g} s")

    def end(self) -> None:
        for connection in self._connections.values():
            connection.end()

    async def _open_on_known(self, peer_id: str, protocol: str) -> Proposed | None:
        """Open a stream on the existing connection; None without one that works."""
        connection = self._live(peer_id)
        if connection is None:
            return None
        try:
            with trio.move_on_after(self._dial_timeout_s / 2):
                return await connection.open(protocol)
        except NotServed:
            raise
        except Unreachable:
            logger.debug("the connection to %s is dialled again", peer_id)
        self._drop(peer_id, connection)
        return None

    def _live(self, peer_id: str) -> Connection | None:
        connection = self._connections.get(peer_id)
        return connection if connection is not None and connection.is_alive else None

    def _drop(self, peer_id: str, connection: Connection) -> None:
        connection.end()
        if self._connections.get(peer_id) is connection:
            del self._connections[peer_id]

    async def _connected(self, peer_id: str, addresses: Sequence[Address]) -> Connection:
        dialling = self._dialling.setdefault(peer_id, trio.Lock())
        async with dialling:
            connection = self._live(peer_id)
            if connection is None:
                connection = await self._dial_all(addresses)
                self._connections.pop(peer_id, None)
                for other, old in list(self._connections.items()):
                    if not old.is_alive or (old.is_idle and len(self._connections) >= MAX_CONNECTIONS):
                        self._drop(other, old)
                self._connections[peer_id] = connection
                self._spawn(connection.run)
            return connection

    async def _dial_all(self, addresses: Sequence[Address]) -> Connection:
        """Dial all addresses, relays later; return the first connection. Raises `Unreachable` with all reasons."""
        if not addresses:
            raise Unreachable("no address is known at which it can be dialled over TCP")
        winners: list[Connection] = []
        reasons: dict[str, None] = {}

        async def attempt(address: Address) -> None:
            try:
                await trio.sleep(RELAY_WAIT_S if address.relay else 0.0)
                connection = await self._dial(address)
            except Exception as error:
                logger.debug("%s cannot be reached at %s", address.peer_id, address, exc_info=True)
                reasons[f"{_reason(error)} at {address}"] = None
                return
            if winners:
                connection.end()
            winners.append(connection)
            race.cancel_scope.cancel()

        async with trio.open_nursery() as race:
            for address in addresses[:MAX_ATTEMPTS]:
                race.start_soon(attempt, address)
        if not winners:
            raise Unreachable("; ".join(reasons))
        return winners[0]

    async def _dial(self, address: Address) -> Connection:
        """Raises `OSError`, `Unreachable` if the address is not permitted, and the errors of `secure`."""
        host = address.host
        if address.relay is None:
            async with self._sockets:
                if address not in self._given:
                    host = await self._permitted(address)
                stream = await trio.open_tcp_stream(host, address.port)
            at, port = stream.socket.getpeername()[:2]
            maddr = f"/{'ip6' if ':' in at else 'ip4'}/{at.partition('%')[0]}/tcp/{port}"
            raw: RawConnection | Proposed = RawConnection(TrioTCPStream(stream), True)
            cut = stream.socket.close
        else:
            # The relay's connection may be in use by other peers, so it is not cut.
            raw, cut = await self._over_relay(address, address.relay), lambda: None
            maddr = self.address_of(address.relay)
        try:
            connection = await secure(raw, self._noise, address.peer_id, cut)
            self._policy.note_peer(host)
            connection.maddr = maddr
            return connection
        except BaseException:
            cut()
            with trio.CancelScope(shield=True):
                await raw.close()
            raise

    async def _permitted(self, address: Address) -> str:
        """The IP address to dial, counted as tried. Raises `OSError`, `Unreachable` if none is permitted."""
        found = await trio.socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)
        now_s = trio.current_time()
        for host in dict.fromkeys(str(place[0]) for *_, place in found):
            if self._policy.takes_try(host, now_s=now_s):
                return host
        raise Unreachable("strangers' private addresses, and ones that failed too often, are not dialled")

    async def _over_relay(self, address: Address, relay: str) -> Proposed:
        """Circuit relay v2, CONNECT. Raises `Unreachable` with the relay's reason."""
        connection = await self._connected(relay, [replace(address, layers=("p2p",), peer_ids=(relay,))])
        stream = await connection.open(_HOP)
        question = HopMessage(type=HopMessage.CONNECT)
        question.peer.id = ID.from_string(address.peer_id).to_bytes()
        try:
            await stream.write(encode_varint_prefixed(question.SerializeToString()))
            # go-libp2p's bound on such a message.
            answer = HopMessage.FromString(await read_varint_prefixed_bytes_limited(stream, 4096))
            if answer.status != Status.OK:
                raise Unreachable(f"{Status.Name(answer.status).lower().replace('_', ' ')}")
        except BaseException:
            with trio.CancelScope(shield=True):
                await stream.reset()
            raise
        return stream


def _reason(error: Exception) -> str:
    if isinstance(error, Unreachable):
        return str(error)
    if isinstance(error, OSError):
        # trio raises one error for all addresses of a host, caused by the operating system's errors.
        below = error.__cause__.exceptions[0] if isinstance(error.__cause__, ExceptionGroup) else error
        if isinstance(below, OSError) and below.errno and not isinstance(below, socket.gaierror):
            return os.strerror(below.errno).lower()
        return str(below)
    return f"the handshake failed ({type(error).__name__})"
