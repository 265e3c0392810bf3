"""Streams and the DHT over hivemind, which is imported on start; the daemon is restarted when it dies."""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Final

from cosine_p2p.dht.cells import Placement
from cosine_p2p.dht.postings import PostingChecker, RecordOpener, RecordStore, dht_key
from cosine_p2p.storage.memory import Remembered
from cosine_p2p.transport.addresses import MAX_KNOWN_PEERS, AddressBook, DialPolicy, Scope, parse_address, scope_of
from cosine_p2p.transport.base import Stream, StreamHandler
from cosine_p2p.transport.config import TransportConfig, peer_of, with_ports
from cosine_p2p.transport.full.initial_peers import InitialPeers, elapsed_s, is_dialable
from cosine_p2p.transport.full.neighbours import NEIGHBOUR, Neighbours
from cosine_p2p.transport.full.questions import QUESTION_S, ask_identity
from cosine_p2p.transport.full.reachability import Reachability
from cosine_p2p.transport.full.relay import ask_granted_bytes, start_relay
from cosine_p2p.transport.full.sockets import SocketStream, sweep_socket_folders
from cosine_p2p.transport.hosts import hosts_of, is_behind_nat, local_hosts
from cosine_p2p.transport.patience import JOIN_PATIENCE_S, end_all
from cosine_p2p.transport.reach import Reachable, ReachKind, parsed, scope_at
from cosine_protocol.errors import PeerLost, UsageError

if TYPE_CHECKING:
    from cosine_p2p.transport.full.daemon import Daemon
    from cosine_p2p.transport.full.dht_cells import DhtCells
    from cosine_p2p.transport.full.dht_node import DhtNode

logger = logging.getLogger(__name__)

SILENT_S: Final = 3.0  # Peers send something each second; p2pd detects a silent peer only after 40 s.
PUNCH_LOOK_S: Final = 0.05
PUNCH_LOOKS: Final = 20  # One second; a direct connection exists after 0.3 s at a round trip of 40 ms.
RELAYED_S: Final = 600.0  # How long a peer that stayed relayed is dialled without waiting for a direct connection.
LOOK_S: Final = 15.0  # The maximum age of the peers that a restarted daemon connects to.
CLOCK_SET_S: Final = 5.0  # More than a clock drifts between two looks, less than records tolerate.
MAX_STREAMS: Final = 4096  # Bounds memory; equals the backlog of the listening socket.
MAX_STREAMS_EACH: Final = 64  # Streams of one peer: enough for every protocol and its links.


@dataclass(frozen=True, slots=True)
class _Running:
    """The network daemon, the DHT node on it, and the cells in the DHT."""

    daemon: "Daemon"
    dht: "DhtNode"
    cells: "DhtCells"


class HivemindTransport:
    """Implements `Transport` and the DHT's `Cells`. Created by `start`, ended by `close`.

    When p2pd dies, its streams end. p2pd and the DHT node are restarted with the same identity, ports, handlers and
    records (counted by `restarts`); dials wait for them.
    """

    def __init__(self, config: TransportConfig) -> None:
        self.config = config
        self.peer_id = ""
        self.restarts = 0
        self.connected_peers = 0
        self.opener = RecordOpener()
        self._checker = PostingChecker(config.network, self.opener, config.gate.membership)
        self._store = RecordStore()
        self._host_maddrs: tuple[str, ...] = config.host_maddrs
        self._maddrs: tuple[str, ...] = ()
        self._known: dict[str, None] = dict.fromkeys(config.initial_peers)
        self._book = AddressBook(parse_address)
        self._policy = DialPolicy(())
        self._is_private = False
        self._initial: InitialPeers | None = None
        self._neighbours = Neighbours(daemon=self._daemon, ask_peer=self._ask_to, dial=self._open)
        self._meetings: dict[str, asyncio.Future[None]] = {}
        self._met = Remembered[str, bool](MAX_KNOWN_PEERS)
        self._reachability: Reachability | None = None
        self._silent: set[str] = set()
        self._unreached = Remembered[str, bool](MAX_KNOWN_PEERS)
        self._relayed = Remembered[str, bool](MAX_KNOWN_PEERS, forgotten_s=RELAYED_S)
        self._handlers: dict[str, StreamHandler] = {}
        self._streams: set[SocketStream] = set()
        self._accepted: dict[SocketStream, str] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._on_change: list[Callable[[], Awaitable[None]]] = []
        self._is_up = asyncio.Event()
        self._running: _Running | None = None
        self._supervisor: asyncio.Task[None] | None = None

    @classmethod
    async def start(cls, config: TransportConfig) -> "HivemindTransport":
        """Raises `UsageError` for unusable addresses and `PeerLost` with the initial peers that do not answer."""
        config.check()
        sweep_socket_folders()
        anchors = (*config.relays, *config.initial_peers)
        hosts = await hosts_of([address for maddr in anchors if (address := parsed(maddr)) is not None])
        if config.listens and not any(scope_of(host) is Scope.PUBLIC for host in hosts):
            # Without public peers there is no NAT to traverse.
            config = replace(config, listens=False)
        transport = cls(config)
        transport._policy = DialPolicy(hosts)
        is_open = config.is_relay or bool(config.announce_maddrs)
        transport._is_private = not is_open and is_behind_nat(local_hosts(hosts), hosts)
        await transport._build(config.initial_peers)
        transport._supervisor = asyncio.create_task(transport.supervise())
        initial = InitialPeers(anchors, hosts=hosts, daemon=transport._daemon)
        if config.client_mode:
            transport._initial = initial
            initial.on_met = transport._forget_silence
            transport._run(initial.run())
        elif config.relays or not config.is_loopback:
            transport._initial = initial
            transport._reachability = Reachability(
                peer_id=transport.peer_id,
                daemon=transport._daemon,
                dial=transport._ask_to,
                initial=initial,
                asks_relays=not config.is_relay,
                insists=bool(config.relays),
                is_named=bool(config.announce_maddrs),
                on_change=transport._changed,
            )
            await transport._reachability.first()
            transport._run(transport._reachability.run())
            await transport.serve(NEIGHBOUR, transport._neighbours.answer)
        return transport

    @property
    def reach(self) -> Reachable:
        if self._reachability is not None:
            return self._reachability.reach
        return Reachable(kind=ReachKind.LOCAL, addresses=self._maddrs)

    @property
    def listens_at(self) -> tuple[str, ...]:
        """The addresses that the node listens on, with their ports."""
        return self._host_maddrs

    @property
    def is_alone(self) -> bool:
        """True for a node without initial peers that has met no other node."""
        return not self.config.initial_peers and not self._met.items()

    @property
    def open_streams(self) -> int:
        return len(self._streams)

    def note_addresses(self, peer_id: str, maddrs: Sequence[str]) -> None:
        self._book.note(peer_id, maddrs)

    async def dial(self, peer_id: str, protocol: str) -> Stream:
        """Open a stream. Raises `PeerLost`, at the latest soon after `dial_timeout_s` of a running daemon."""
        self.config.gate.check_dial(peer_id)
        running = await self._up(peer_id)
        await self._approach(running.daemon, peer_id)
        return await self._open(peer_id, protocol)

    async def meet(self, peer_id: str, maddrs: Sequence[str]) -> bool:
        """Enter the DHT of a neighbour in the local network; True if it was not met before. Raises `PeerLost`."""
        self.config.gate.check_dial(peer_id)
        running = await self._up(peer_id)
        if not await self._ways_to(running.daemon, peer_id):
            if not await is_dialable(maddrs):
                raise PeerLost(peer_id, "nothing listens at its address")
            await running.daemon.connect(peer_id, maddrs, self.config.dial_timeout_s)
        await running.dht.enter(maddrs[:1])
        if self._met.get(peer_id):
            return False
        self._met.note(peer_id, True)
        for address in filter(None, map(parsed, maddrs)):
            self._policy.note_given(address.host)
        # Its DHT does not know this node's record.
        await self._changed()
        return True

    async def address_of(self, peer_id: str) -> str:
        """The address of a peer, or of its relay; "" if the daemon does not answer in time."""
        try:
            ways = await self._ways_to(await self._daemon(), peer_id)
        except PeerLost:
            return ""
        direct = [maddr for maddr in ways if "/p2p-circuit" not in maddr]
        return next((f"{maddr}/p2p/{peer_id}" for maddr in (*direct, *ways)), "")

    async def serve(self, protocol: str, handler: StreamHandler) -> None:
        self._handlers[protocol] = handler
        if self._running is not None:
            await self._running.daemon.serve(protocol, self._accept)

    @asynccontextmanager
    async def serving(
        self, handlers: Mapping[str, StreamHandler], on_change: Callable[[], Awaitable[None]]
    ) -> AsyncIterator[None]:
        """Serve protocols inside the context; `on_change` is awaited after the daemon or the addresses changed."""
        self._on_change.append(on_change)
        try:
            for protocol, handler in handlers.items():
                await self.serve(protocol, handler)
            yield
        finally:
            self._on_change.remove(on_change)
            for protocol in handlers:
                self._handlers.pop(protocol, None)
            for stream in [each for each, protocol in self._accepted.items() if protocol in handlers]:
                stream.close()
            if self._running is not None:
                await asyncio.gather(*map(self._running.daemon.withdraw, handlers))

    async def visible_maddrs(self) -> tuple[str, ...]:
        """Our full addresses; the last known ones while the daemon is down."""
        if self._running is not None:
            with suppress(PeerLost):
                self._maddrs = await self._running.daemon.visible_maddrs()
        return self._maddrs

    async def read(self, cells: Sequence[str]) -> Mapping[str, Mapping[str, bytes]]:
        try:
            return await (await self._up(self.peer_id)).cells.read(cells)
        except PeerLost:
            # The route to all peers may have changed, unless one of them was heard recently.
            if self._initial is not None and not any(stream.silent_s < SILENT_S for stream in self._streams):
                self._run(self._initial.connect_anew())
            raise

    def held_in(self, cell: str) -> list[bytes]:
        """The signed records of one cell that this node stores."""
        return [posting.data for posting in self._store.get(dht_key(cell), time.time())]

    async def write(
        self, cell: str, owner: str, data: bytes, expires_at_s: float, *, is_renewal: bool = False
    ) -> Placement:
        cells = (await self._up(self.peer_id)).cells
        return await cells.write(cell, owner, data, expires_at_s, is_renewal=is_renewal)

    async def close(self) -> None:
        await end_all([*self._tasks, *filter(None, [self._supervisor])])
        for stream in list(self._streams):
            stream.close()
        await asyncio.sleep(0)
        await self._end_running()

    async def supervise(self) -> None:
        """Restart the daemon when it dies, until cancelled."""
        while True:
            assert self._running is not None
            ended = asyncio.ensure_future(self._running.daemon.ended())
            ahead_s = time.time() - elapsed_s()
            try:
                while not ended.done():
                    await asyncio.wait([ended], timeout=LOOK_S)
                    if not ended.done():
                        await self._note_connected_peers()
                    before_s, ahead_s = ahead_s, time.time() - elapsed_s()
                    if abs(ahead_s - before_s) > CLOCK_SET_S:
                        # Records have the clock's times.
                        logger.info("the clock of this machine was set by %+.0f s", ahead_s - before_s)
                        self._run(self._changed())
                logger.warning("the network daemon ended with code %d; starting it again", ended.result())
                await self._rebuild()
            finally:
                ended.cancel()

    async def _approach(self, daemon: "Daemon", peer_id: str) -> None:
        """Connect to a peer whose addresses are known, unless connected. Raises `PeerLost`."""
        if peer_id in self._silent:
            self._silent.discard(peer_id)
            await daemon.disconnect(peer_id)
        hosts = self._permitted(peer_id)
        if not hosts:
            return
        ways = await self._ways_to(daemon, peer_id)
        if not ways:
            await self._connect(daemon, peer_id, hosts)
        if self._initial is not None and all("/p2p-circuit" in way for way in ways):
            await self._meet_neighbour(daemon, peer_id, tuple(hosts))
        if not ways and self.config.has_ports:
            await self._await_direct(daemon, peer_id)

    async def _connect(self, daemon: "Daemon", peer_id: str, hosts: Mapping[str, str]) -> None:
        """Dial the addresses, given with their hosts, that are still permitted. Raises `PeerLost`."""
        now_s = asyncio.get_running_loop().time()
        tried = [maddr for maddr, host in hosts.items() if self._policy.takes_try(host, now_s=now_s)]
        if not tried:
            return
        if self._unreached.get(peer_id) and not await is_dialable(tried):
            raise PeerLost(peer_id, "nothing listens at its address any more")
        self._unreached.note(peer_id, True)
        await daemon.connect(peer_id, tried, self.config.dial_timeout_s)
        self._unreached.pop(peer_id)
        for maddr in tried:
            self._policy.note_peer(hosts[maddr])

    async def _meet_neighbour(self, daemon: "Daemon", peer_id: str, maddrs: Sequence[str]) -> None:
        """Reconnect to a relayed peer behind the same router at its private address. Raises `PeerLost`."""

        async def meet() -> None:
            ways = await self._ways_to(daemon, peer_id)
            if not all("/p2p-circuit" in way for way in ways) or not self._is_idle(peer_id):
                return
            places = await self._neighbours.private_maddrs_of(peer_id)
            # p2pd does not dial a connected peer.
            if places and self._is_idle(peer_id):
                await daemon.disconnect(peer_id)
                await daemon.connect(peer_id, (*places, *maddrs), self.config.dial_timeout_s)
                self._neighbours.note_met(peer_id)

        # Concurrent dials share one meeting, since reconnecting cuts the streams that exist.
        meeting = self._meetings.get(peer_id)
        if meeting is None:
            meeting = self._meetings[peer_id] = asyncio.ensure_future(meet())
            meeting.add_done_callback(lambda _: self._meetings.pop(peer_id))
        await asyncio.shield(meeting)

    def _is_idle(self, peer_id: str) -> bool:
        return all(stream.peer_id != peer_id for stream in self._streams)

    async def _await_direct(self, daemon: "Daemon", peer_id: str) -> None:
        """Wait a moment for a direct connection: a stream stays on the connection on which it was opened."""
        own = await self.visible_maddrs()
        if self._relayed.get(peer_id, asyncio.get_running_loop().time()) or not any(
            scope_at(maddr) is Scope.PUBLIC for maddr in own
        ):
            return
        for _ in range(PUNCH_LOOKS):
            if not all("/p2p-circuit" in way for way in await self._ways_to(daemon, peer_id)):
                return
            await asyncio.sleep(PUNCH_LOOK_S)
        # One of the two routers prevents a direct connection.
        self._relayed.note(peer_id, True, asyncio.get_running_loop().time())

    async def _ways_to(self, daemon: "Daemon", peer_id: str) -> tuple[str, ...]:
        try:
            return (await daemon.ways()).get(peer_id, ())
        except PeerLost:
            return ()

    def _permitted(self, peer_id: str) -> dict[str, str]:
        """The addresses of a peer that may be dialled, with their hosts; a record may claim any address."""
        now_s = asyncio.get_running_loop().time()
        return {
            maddr: address.host
            for address, maddr in self._book.of(peer_id).items()
            if address.port and self._policy.permits(address.host, now_s=now_s)
        }

    async def _open(self, peer_id: str, protocol: str) -> Stream:
        """Raises `PeerLost`."""
        ends = await (await self._daemon()).open(peer_id, protocol, self.config.dial_timeout_s)
        stream = SocketStream(peer_id, *ends, self._closed)
        self._streams.add(stream)
        return await self.config.gate.enter(stream)

    async def _ask_to(self, peer_id: str, protocol: str) -> Stream:
        """A stream of one of libp2p's own protocols, which bypass the gate."""
        daemon = await self._daemon()
        return SocketStream(
            peer_id, *await daemon.open(peer_id, protocol, self.config.dial_timeout_s), lambda _: None
        )

    async def _daemon(self) -> "Daemon":
        return (await self._up(self.peer_id)).daemon

    async def _changed(self) -> None:
        self._forget_silence()
        for callback in list(self._on_change):
            await callback()

    def _forget_silence(self) -> None:
        if self._running is not None:
            self._running.cells.begin_again()

    async def _see_alike(self, daemon: "Daemon") -> None:
        """Connect to public peers over QUIC: p2pd punches holes only if enough of them see us at one port."""

        async def meet(peer_id: str, maddrs: Sequence[str]) -> None:
            async def ask(peer_id: str, protocol: str) -> Stream:
                return SocketStream(peer_id, *await daemon.open(peer_id, protocol, QUESTION_S), lambda _: None)

            with suppress(PeerLost):
                named = (await ask_identity(ask, peer_id, timeout_s=QUESTION_S)).maddrs
                quic = [maddr for maddr in named if "/quic-v1" in maddr and scope_at(maddr) is Scope.PUBLIC]
                if not quic or any("/quic-v1" in maddr for maddr in maddrs):
                    return
                await daemon.disconnect(peer_id)
                await daemon.connect(peer_id, (*quic, *maddrs), self.config.dial_timeout_s)

        with suppress(PeerLost):
            await asyncio.gather(*(meet(peer_id, maddrs) for peer_id, maddrs in (await daemon.ways()).items()))

    async def _up(self, peer_id: str) -> _Running:
        """The running daemon. Waits longer than a dial, which would lose all verifiers. Raises `PeerLost`."""
        try:
            async with asyncio.timeout(JOIN_PATIENCE_S):
                await self._is_up.wait()
        except TimeoutError:
            raise PeerLost(peer_id, "the local network daemon is being started again") from None
        assert self._running is not None
        return self._running

    async def _end_running(self) -> None:
        running, self._running = self._running, None
        if running is not None:
            await running.daemon.close()

    async def _build(self, peers: Sequence[str]) -> None:
        build = partial(self._build_once, peers)
        if self.config.is_relay:
            await start_relay(build, lambda daemon: ask_granted_bytes(daemon, host_maddrs=self._host_maddrs))
        else:
            await build()

    async def _build_once(self, peers: Sequence[str]) -> "Daemon":
        from cosine_p2p.transport.full.daemon import start_daemon
        from cosine_p2p.transport.full.dht_cells import DhtCells
        from cosine_p2p.transport.full.dht_node import DhtNode
        from cosine_p2p.transport.full.library import PeerID

        self._is_up.clear()
        self._running = None
        daemon = await start_daemon(
            self.config, host_maddrs=self._host_maddrs, peers=peers, is_private=self._is_private
        )
        try:
            # At once: peers that dial a restarted daemon would take its node for one that serves nothing.
            await asyncio.gather(*(daemon.serve(protocol, self._accept) for protocol in self._handlers))
            if self._is_private and self.config.has_ports:
                await self._see_alike(daemon)
            async with asyncio.timeout(self.config.start_timeout_s):
                dht = await DhtNode.start(
                    daemon,
                    checker=self._checker,
                    store=self._store,
                    # A node that cannot be dialled stores nothing for others.
                    client_mode=self.config.client_mode or self._is_private,
                    gate=self.config.gate,
                    is_silent=lambda peer_id: self._initial is not None and self._initial.is_silent(peer_id),
                )
                if peers:
                    await dht.enter(peers)
                maddrs = await daemon.visible_maddrs()
        except TimeoutError:
            await daemon.close()
            raise PeerLost(", ".join(peers), "joining took too long; check that it is running") from None
        except BaseException:
            await daemon.close()
            raise
        self.peer_id, self._maddrs = daemon.peer_id, maddrs
        anchors = [PeerID.from_base58(peer_of(maddr)) for maddr in self.config.initial_peers]
        cells = DhtCells(dht, checker=self._checker, store=self._store, anchors=anchors)
        self._running = _Running(daemon, dht, cells)
        if self.config.has_ports:
            self._host_maddrs = with_ports(self._host_maddrs, maddrs)
        self._is_up.set()
        return daemon

    async def _rebuild(self) -> None:
        self._is_up.clear()
        await self._end_running()
        pause_s = 0.5
        while self._running is None:
            try:
                try:
                    await self._build(list(self._known))
                except PeerLost:
                    await self._build([])
            except Exception as error:
                logger.warning("the network daemon could not be started again: %s", error)
                logger.debug("why it could not", exc_info=True)
                if isinstance(error, UsageError):
                    # Another program took a port that was assigned to this node; a port from the user stays.
                    self._host_maddrs = self.config.host_maddrs
                await asyncio.sleep(pause_s)
                pause_s = min(2 * pause_s, 30.0)
        self.restarts += 1
        if self._reachability is not None:
            self._reachability.restarted()
        self._run(self._changed())

    async def _note_connected_peers(self) -> None:
        """Remember some connected peers for a restart; reconnect if none is left."""
        assert self._running is not None
        try:
            ways = await self._running.daemon.ways()
        except PeerLost:
            return
        connected = [f"{maddrs[0]}/p2p/{peer_id}" for peer_id, maddrs in ways.items() if maddrs]
        self.connected_peers = len(connected)
        if connected:
            self._known = dict.fromkeys([*self.config.initial_peers, *connected[:8]])
        elif self._known:
            await asyncio.gather(*map(self._reconnect, list(self._known)), return_exceptions=True)

    async def _reconnect(self, maddr: str) -> None:
        from cosine_p2p.transport.full.library import PeerID

        if not await is_dialable([maddr]):
            return
        running, peer_id = await self._up(maddr), peer_of(maddr)
        await running.daemon.connect(peer_id, (maddr,), self.config.dial_timeout_s)
        await running.dht.call_ping(PeerID.from_base58(peer_id))

    def _closed(self, stream: SocketStream) -> None:
        self._streams.discard(stream)
        self._accepted.pop(stream, None)
        others = [other for other in self._streams if other.peer_id == stream.peer_id]
        if stream.silent_s > SILENT_S and all(other.silent_s > SILENT_S for other in others):
            self._silent.add(stream.peer_id)

    def _accept(
        self, peer_id: str, protocol: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        stream = SocketStream(peer_id, reader, writer, self._closed)
        self._streams.add(stream)
        handler = self._handlers.get(protocol)
        own = sum(known.peer_id == peer_id for known in self._streams)
        # A handler may have been withdrawn since the stream was opened.
        if handler is None or len(self._streams) > MAX_STREAMS or own > MAX_STREAMS_EACH:
            stream.abort()
            return
        self._accepted[stream] = protocol
        self._run(self._handle(stream, handler))

    async def _handle(self, stream: SocketStream, handler: StreamHandler) -> None:
        try:
            admitted = await self.config.gate.admit(stream)
            if admitted is not None:
                await handler(admitted)
        finally:
            stream.close()

    def _run(self, work: Awaitable[None]) -> None:
        async def logged() -> None:
            try:
                await work
            except PeerLost as lost:
                logger.debug("a stream ended: %s", lost)
            except Exception:
                logger.exception("a network task failed")

        task = asyncio.create_task(logged())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
