"""The peers a light client is connected to: dialled over TCP or through relays, one connection each, kept.

py-libp2p's own host is not used: it tries one address of a peer, a quarter of a second late, refuses for a minute
to try again, and offers services. Everything here runs in the trio thread.
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
from cosine_p2p.transport.light.sockets import EarlySockets
from cosine_protocol.errors import PeerLost

logger = logging.getLogger(__name__)

MAX_CONNECTIONS: Final = 128  # Bounds open sockets; idle connections make room.
MAX_ATTEMPTS: Final = 6  # Bounds the addresses of one peer that are dialled at once.
MAX_DIALS: Final = 48  # Bounds the connections that are being made at a time: the addresses of eight peers.
RELAY_WAIT_S: Final = 0.5  # Relays are dialled later than direct addresses, which are tried first.
_HOP: Final = "/libp2p/circuit/relay/0.2.0/hop"  # of circuit relay v2

_T = TypeVar("_T")


class LightHost:
    """Dials `given` addresses and those `policy` permits, some begun `early`, with the Ed25519 key of `seed`."""

    def __init__(
        self,
        seed: bytes,
        spawn: Callable[[Callable[[], Awaitable[None]]], None],
        *,
        dial_timeout_s: float,
        given: Sequence[Address],
        policy: DialPolicy,
        early: EarlySockets,
    ) -> None:
        key = Ed25519PrivateKey.from_bytes(seed)
        pair = KeyPair(key, key.get_public_key())
        self._noise = NoiseTransport(pair, noise_privkey=new_noise_keys().private_key)
        self._spawn = spawn
        self._dial_timeout_s = dial_timeout_s
        self._given = frozenset(given)
        self._policy = policy
        self._early = early
        self._sockets = trio.CapacityLimiter(MAX_DIALS)
        self._connections: dict[str, Connection] = {}
        # A lock is gone with the last that waits for it.
        self._dialling = WeakValueDictionary[str, trio.Lock]()

    async def open(self, peer_id: str, addresses: Sequence[Address], protocol: str) -> Proposed:
        """A stream to a peer. Raises `PeerLost` with the reason, at the latest after the dial timeout."""

        async def work() -> Proposed:
            stream = await self._open_on_known(peer_id, protocol)
            return stream or await (await self._connected(peer_id, addresses)).open(protocol)

        return await self._in_time(peer_id, work)

    async def connect(self, peer_id: str, addresses: Sequence[Address]) -> None:
        """Raises what `open` raises."""
        await self._in_time(peer_id, partial(self._connected, peer_id, addresses))

    async def reserve(self, peer_id: str, addresses: Sequence[Address]) -> int:
        """Bytes each way that a relay lets a circuit to us carry. Raises what `open` raises."""

        async def work() -> int:
            stream = await (await self._connected(peer_id, addresses)).open(_HOP)
            answer = await _ask_relay(stream, HopMessage(type=HopMessage.RESERVE))
            await stream.close()
            # A reservation without a limit says 0.
            return answer.limit.data or 1 << 63

        return await self._in_time(peer_id, work)

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
        """None without a working connection; one may have died unheard."""
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
        """Raises `Unreachable`."""
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
        """Dial all, relays later; the first to answer counts. Raises `Unreachable` with all reasons."""
        if not addresses:
            raise Unreachable("no address is known at which it can be dialled over TCP")
        winners: list[Connection] = []
        reasons: dict[str, None] = {}

        async def attempt(address: Address) -> None:
            try:
                # Relays are for peers that cannot be reached directly.
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
        """Raises `OSError`, `Unreachable` for one that is not permitted, and what `secure` raises."""
        host = address.host
        if address.relay is None:
            async with self._sockets:
                if address not in self._given:
                    host = await self._permitted(address)
                begun = self._early.take(host, address.port)
                if begun is not None:
                    stream = await _connected(begun)
                else:
                    stream = await trio.open_tcp_stream(host, address.port)
            at, port = stream.socket.getpeername()[:2]
            maddr = f"/{'ip6' if ':' in at else 'ip4'}/{at.partition('%')[0]}/tcp/{port}"
            raw: RawConnection | Proposed = RawConnection(TrioTCPStream(stream), True)
            cut = stream.socket.close
        else:
            # What lies below is the relay's connection, which others may use.
            raw, cut = await self._over_relay(address, address.relay), _leave
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
        """The IP address to dial, counted as dialled. Raises `OSError`, `Unreachable` if none is permitted."""
        found = await trio.socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)
        now_s = trio.current_time()
        for host in dict.fromkeys(str(place[0]) for *_, place in found):
            if self._policy.takes_try(host, now_s=now_s):
                return host
        raise Unreachable("strangers' private addresses, and ones that failed too often, are not dialled")

    async def _over_relay(self, address: Address, relay: str) -> Proposed:
        connection = await self._connected(relay, [replace(address, layers=("p2p",), peer_ids=(relay,))])
        stream = await connection.open(_HOP)
        question = HopMessage(type=HopMessage.CONNECT)
        question.peer.id = ID.from_string(address.peer_id).to_bytes()
        await _ask_relay(stream, question)
        return stream


async def _connected(begun: socket.socket) -> trio.SocketStream:
    """The stream of a connecting socket. Raises `OSError` where that fails."""
    connecting = trio.socket.from_stdlib_socket(begun)
    try:
        await trio.lowlevel.wait_writable(connecting.fileno())
        if failed := connecting.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
            raise OSError(failed, os.strerror(failed))
        return trio.SocketStream(connecting)
    except BaseException:
        connecting.close()
        raise


def _leave() -> None:
    """Cut nothing."""


async def _ask_relay(stream: Proposed, question: HopMessage) -> HopMessage:
    """Circuit relay v2. Raises `Unreachable` with the relay's reason."""
    try:
        await stream.write(encode_varint_prefixed(question.SerializeToString()))
        # go-libp2p's own bound on such a message.
        answer = HopMessage.FromString(await read_varint_prefixed_bytes_limited(stream, 4096))
        if answer.status != Status.OK:
            raise Unreachable(f"{Status.Name(answer.status).lower().replace('_', ' ')}")
    except BaseException:
        with trio.CancelScope(shield=True):
            await stream.reset()
        raise
    return answer


def _reason(error: Exception) -> str:
    if isinstance(error, Unreachable):
        return str(error)
    if isinstance(error, OSError):
        # trio raises one error for all addresses of a host; the operating system's own lie below it.
        below = error.__cause__.exceptions[0] if isinstance(error.__cause__, ExceptionGroup) else error
        if isinstance(below, OSError) and below.errno and not isinstance(below, socket.gaierror):
            return os.strerror(below.errno).lower()
        return str(below)
    return f"the handshake failed ({type(error).__name__})"
