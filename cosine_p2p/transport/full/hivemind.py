"""Streams and the DHT of a full node over hivemind, kept up when the network daemon under them dies.

Importing this module does not import hivemind; starting a transport does.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from cosine_p2p.directory.dht import Placement
from cosine_p2p.directory.postings import PostingChecker, RecordOpener, RecordStore
from cosine_p2p.transport.base import Stream, StreamHandler
from cosine_p2p.transport.config import TransportConfig, peer_of, with_ports
from cosine_p2p.transport.full.relay import ask_granted_bytes, start_relay
from cosine_p2p.transport.full.sockets import SocketStream, sweep_socket_folders
from cosine_protocol.errors import PeerLost

if TYPE_CHECKING:
    from cosine_p2p.transport.full.daemon import Daemon
    from cosine_p2p.transport.full.dht_cells import DhtCells

logger = logging.getLogger(__name__)

CIRCUIT_WAIT_S: Final = 5.0
"""Time for a relay to answer, before a warning is due."""
MAX_STREAMS: Final = 4096
"""Bounds memory, at one for each place in the listening socket's backlog."""
MAX_STREAMS_EACH: Final = 64
"""A peer needs one for each protocol and its links; with more it takes the places of others."""
JOIN_AGAIN_S: Final = 2.0
"""A peer that starts at the same time listens by then, and one that was busy for a moment answers."""


@dataclass(frozen=True, slots=True)
class _Running:
    """The network daemon, hivemind's DHT node on it, and the cells in that."""

    daemon: "Daemon"
    dht: Any
    cells: "DhtCells"


class HivemindTransport:
    """Implements `Transport` and the DHT's `Cells`. Made by `start`; end it with `close`.

    When p2pd dies its streams end, and p2pd and the DHT node come back with the same identity, port, handlers
    and stored records; `restarts` counts that. Who dials or asks the DHT meanwhile waits for it, for as long as a
    dial may take.
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
        self._handlers: dict[str, StreamHandler] = {}
        self._streams: set[SocketStream] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._on_restart: list[Callable[[], Awaitable[None]]] = []
        self._is_up = asyncio.Event()
        self._running: _Running | None = None
        self._supervisor: asyncio.Task[None] | None = None

    @classmethod
    async def start(cls, config: TransportConfig) -> "HivemindTransport":
        """Join the network; a node, which is to stay, tries its initial peers once more where none answers.

        Raises `UsageError` for addresses that cannot be used, `PeerLost` naming initial peers that do not answer.
        """
        config.check()
        sweep_socket_folders()
        transport = cls(config)
        try:
            await transport._build(config.initial_peers)
        except PeerLost as lost:
            if config.client_mode:
                raise
            logger.warning("%s; trying once more", lost)
            await asyncio.sleep(JOIN_AGAIN_S)
            await transport._build(config.initial_peers)
        transport._supervisor = asyncio.create_task(transport.supervise())
        if config.relays:
            await transport._await_circuit()
        return transport

    @property
    def open_streams(self) -> int:
        """Streams open now, dialled and accepted."""
        return len(self._streams)

    def on_restart(self, callback: Callable[[], Awaitable[None]]) -> None:
        """Await `callback` each time the daemon is back."""
        self._on_restart.append(callback)

    async def dial(self, peer_id: str, protocol: str) -> Stream:
        """Open a stream; raises `PeerLost` with the reason, soon after `dial_timeout_s` at the latest."""
        self.config.gate.check_dial(peer_id)
        running = await self._up(peer_id)
        reader, writer = await running.daemon.open(peer_id, protocol, self.config.dial_timeout_s)
        return await self.config.gate.enter(self._tracked(peer_id, reader, writer))

    async def address_of(self, peer_id: str) -> str:
        """Of a peer that a relay joins to us the relay's; "" too where the daemon does not tell in time."""
        try:
            connected = await (await self._up(peer_id)).daemon.connected_maddrs()
        except (OSError, EOFError, TimeoutError, PeerLost):
            return ""
        return next((maddr for maddr in connected if maddr.endswith(f"/p2p/{peer_id}")), "")

    async def connect(self, maddr: str) -> None:
        """Connect to a peer at its full address, so that it can be dialled. Raises `PeerLost`."""
        await (await self._up(maddr)).daemon.connect(maddr, self.config.dial_timeout_s)

    async def serve(self, protocol: str, handler: StreamHandler) -> None:
        self._handlers[protocol] = handler
        if self._running is not None:
            await self._running.daemon.serve(protocol, self._accept)

    async def visible_maddrs(self) -> tuple[str, ...]:
        """Our full addresses, as other peers should dial them; the last known ones while the daemon is down."""
        if self._running is not None:
            try:
                self._maddrs = await self._running.daemon.visible_maddrs()
            except (OSError, EOFError, TimeoutError):
                logger.debug("the network daemon did not tell our addresses")
        return self._maddrs

    async def read(self, cells: Sequence[str]) -> Mapping[str, Mapping[str, bytes]]:
        return await (await self._up(self.peer_id)).cells.read(cells)

    async def write(
        self, cell: str, owner: str, data: bytes, expires_at_s: float, *, is_renewal: bool = False
    ) -> Placement:
        running = await self._up(self.peer_id)
        return await running.cells.write(cell, owner, data, expires_at_s, is_renewal=is_renewal)

    async def close(self) -> None:
        """Leave the network: stop serving, end every stream, end the daemon."""
        tasks = [*self._tasks, *filter(None, [self._supervisor])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for stream in list(self._streams):
            stream.close()
        await asyncio.sleep(0)
        await self._end_running()

    async def supervise(self) -> None:
        """Run until cancelled: bring the daemon back when it dies, look around now and then."""
        while True:
            assert self._running is not None
            ended = asyncio.ensure_future(self._running.daemon.ended())
            try:
                while not ended.done():
                    # The peers that a restarted daemon asks are so old at most.
                    await asyncio.wait([ended], timeout=15.0)
                    if not ended.done():
                        await self._note_connected_peers()
                logger.warning("the network daemon ended with code %d; starting it again", ended.result())
                await self._rebuild()
            finally:
                ended.cancel()

    async def _up(self, peer_id: str) -> _Running:
        """Raises `PeerLost` where the daemon does not come back in the time that a dial may take."""
        try:
            async with asyncio.timeout(self.config.dial_timeout_s):
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
        from cosine_p2p.transport.full.dht_node import start_dht
        from cosine_p2p.transport.full.library import PeerID

        self._is_up.clear()
        self._running = None
        daemon = await start_daemon(self.config, host_maddrs=self._host_maddrs, peers=peers)
        try:
            async with asyncio.timeout(self.config.start_timeout_s):
                dht = await start_dht(
                    daemon.p2p,
                    peers=peers,
                    checker=self._checker,
                    store=self._store,
                    client_mode=self.config.client_mode,
                    gate=self.config.gate,
                )
                maddrs = await daemon.visible_maddrs()
                for protocol in self._handlers:
                    await daemon.serve(protocol, self._accept)
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
        if not self.config.client_mode:
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
                await asyncio.sleep(pause_s)
                pause_s = min(2 * pause_s, 30.0)
        self.restarts += 1
        for callback in self._on_restart:
            self._run(callback())

    async def _note_connected_peers(self) -> None:
        """Remember some connected peers for a restart; connect to the known ones again if none is left."""
        assert self._running is not None
        try:
            connected = await self._running.daemon.connected_maddrs()
        except (OSError, EOFError, TimeoutError):
            return
        self.connected_peers = len(connected)
        if connected:
            self._known = dict.fromkeys([*self.config.initial_peers, *connected[:8]])
        elif self._known:
            await asyncio.gather(*map(self._reconnect, list(self._known)), return_exceptions=True)

    async def _reconnect(self, maddr: str) -> None:
        from cosine_p2p.transport.full.library import PeerID

        await self.connect(maddr)
        await (await self._up(maddr)).dht.protocol.call_ping(PeerID.from_base58(peer_of(maddr)))

    async def _await_circuit(self) -> None:
        """A node behind NAT is reachable only once a relay has given it an address."""
        deadline_s = time.monotonic() + CIRCUIT_WAIT_S
        while not any("/p2p-circuit" in maddr for maddr in await self.visible_maddrs()):
            if time.monotonic() > deadline_s:
                logger.warning("no relay has given us an address yet; peers may not reach this node")
                return
            await asyncio.sleep(0.1)

    def _tracked(self, peer_id: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> SocketStream:
        stream = SocketStream(peer_id, reader, writer, self._streams.discard)
        self._streams.add(stream)
        return stream

    def _accept(
        self, peer_id: str, protocol: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        stream = self._tracked(peer_id, reader, writer)
        own = sum(known.peer_id == peer_id for known in self._streams)
        if len(self._streams) > MAX_STREAMS or own > MAX_STREAMS_EACH:
            # Who floods us shall not fill the log as well.
            logger.debug("%s was turned away: %d streams are open, %d its own", peer_id, len(self._streams), own)
            stream.abort()
            return
        self._run(self._handle(stream, self._handlers[protocol]))

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
