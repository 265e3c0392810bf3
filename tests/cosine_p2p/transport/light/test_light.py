"""The light transport: streams to py-libp2p hosts on loopback, and failing dials."""

import asyncio
import subprocess
import sys
import threading
from collections.abc import Awaitable, Callable
from contextlib import suppress
from importlib.util import find_spec
from typing import Any

import psutil
import pytest
import trio
from trio.testing import MockClock

from cosine_p2p.transport.base import Stream
from cosine_p2p.transport.full.questions import ask_reservation
from cosine_p2p.transport.full.relay import CIRCUIT_BYTES
from cosine_p2p.transport.light.connection import WRITE_TIMEOUT_S, Muxer
from cosine_p2p.transport.light.library import ID, MAX_WINDOW_SIZE, RawConnError
from cosine_p2p.transport.light.light import LightConfig, LightTransport
from cosine_p2p.transport.peer_gate import PeerGate
from cosine_p2p.trust.denied_peers import DeniedPeers
from cosine_protocol.errors import LocalProtocolError, PeerLost, UsageError
from cosine_protocol.identity import Identity
from tests.cosine_p2p.transport.full_nodes import Swarm, in_swarm, lost, pid_of
from tests.cosine_p2p.transport.libp2p_server import ECHO, HANG_UP, Server, serving
from tests.scenes import as_test, in_real_time

pytestmark = pytest.mark.network
needs_hivemind = pytest.mark.skipif(find_spec("hivemind") is None, reason="needs hivemind beside py-libp2p")

OURS = Identity.from_seed(b"\x01" * 32)
NOBODY = Identity.from_seed(b"\x09" * 32).peer_id
SEED, OTHER_SEED = b"\x02" * 32, b"\x03" * 32
CLOSED_PORT = "/ip4/127.0.0.1/tcp/1"
# libp2p's default for a circuit is 128 KiB.
MUCH_BYTES = 2 << 20

Play = Callable[[LightTransport, Server], Awaitable[None]]


def config(*maddrs: str, dial_timeout_s: float = 4.0) -> LightConfig:
    return LightConfig(identity=OURS, initial_peers=maddrs, dial_timeout_s=dial_timeout_s)


@in_real_time
async def with_server(play: Play) -> None:
    """A server, and a transport that has joined through it."""
    async with serving(SEED) as server:
        transport = await LightTransport.start(config(server.maddr))
        try:
            await play(transport, server)
        finally:
            await transport.close()


served = as_test(with_server, given=2)


@served
async def test_streams_share_a_connection_until_the_peer_leaves(transport: LightTransport, server: Server) -> None:
    streams = await asyncio.gather(*(transport.dial(server.peer_id, ECHO) for _ in range(8)))
    for number, stream in enumerate(streams):
        await stream.write(b"%d" % number)
    assert [await stream.read() for stream in streams] == [b"%d" % number for number in range(8)]

    async def connections(host: Any) -> int:
        return len(host.get_network().get_connections())

    assert await server.run(connections) == 1
    # The dial may or may not hear the answer first.
    await asyncio.gather(transport.dial(server.peer_id, HANG_UP), return_exceptions=True)
    assert await streams[0].read() == b""
    await lost(streams[0].write(b"anybody?"))
    again = await transport.dial(server.peer_id, ECHO)
    await again.write(b"there you are")
    assert await again.read() == b"there you are"


@served
async def test_reasons_of_a_dial_that_fails(transport: LightTransport, server: Server) -> None:
    assert "no address" in (await lost(transport.dial(NOBODY, ECHO))).reason
    for maddr, reason in (
        (f"{CLOSED_PORT}/p2p/{NOBODY}", "connection refused at 127.0.0.1:1"),
        # The server's address with another peer id.
        (server.maddr.rpartition("/p2p/")[0], "handshake failed"),
        # The address at which clouds give machines their keys.
        ("/ip4/169.254.169.254/tcp/80", "not dialled"),
        (f"{server.maddr}/p2p-circuit", "the relay at"),
    ):
        transport.note_addresses(NOBODY, [maddr, "/ip4/127.0.0.1/udp/1/quic-v1"])
        assert reason in (await lost(transport.dial(NOBODY, ECHO))).reason


@in_real_time
async def test_joining_needs_one_initial_peer_that_answers_and_closing_leaves_no_thread_and_no_task() -> None:
    async with serving(SEED) as server:
        tasks = asyncio.all_tasks()
        nobody = f"{CLOSED_PORT}/p2p/{NOBODY}"
        transport = await LightTransport.start(config(nobody, server.maddr))
        assert transport.initial_peers == (NOBODY, server.peer_id)
        stream = await transport.dial(server.peer_id, ECHO)
        await transport.close()
        assert await stream.read() == b""
        assert "left" in (await lost(transport.dial(server.peer_id, ECHO))).reason
        error = await lost(LightTransport.start(config(nobody, f"/ip4/127.0.0.1/tcp/2/p2p/{NOBODY}")))
        assert nobody in str(error) and "connection refused" in error.reason
        with pytest.raises(UsageError, match="nonsense"):
            await LightTransport.start(config("nonsense"))
        assert "cosine-libp2p" not in {thread.name for thread in threading.enumerate()}
        assert asyncio.all_tasks() == tasks


class SlowConnection:
    def __init__(self, pause_s: float) -> None:
        self.written = b""
        self._pause_s = pause_s

    async def write(self, data: bytes) -> None:
        self.written += data[:1]
        await trio.sleep(self._pause_s)
        self.written += data[1:]


def test_a_frame_is_written_whole_though_its_task_is_cancelled_and_a_peer_that_takes_none_is_cut_off() -> None:
    cuts: list[str] = []

    async def run() -> None:
        slow = SlowConnection(1.0)
        with trio.move_on_after(0.5):
            await Muxer(slow, ID.from_string(NOBODY), lambda: cuts.append("cut"))._write_frame(b"a whole frame")
        assert (slow.written, cuts) == (b"a whole frame", [])
        stuck = Muxer(SlowConnection(WRITE_TIMEOUT_S + 1), ID.from_string(NOBODY), lambda: cuts.append("cut"))
        with pytest.raises(RawConnError):
            await stuck._write_frame(b"a whole frame")
        assert cuts == ["cut"]

    trio.run(run, clock=MockClock(autojump_threshold=0))


def test_a_peer_cannot_fill_our_memory() -> None:
    async def run() -> None:
        muxer = Muxer(None, ID.from_string(NOBODY), lambda: None)
        muxer.stream_buffers[2] = bytearray(MAX_WINDOW_SIZE + 1)
        # The error after which yamux closes the connection.
        with pytest.raises(trio.TooSlowError):
            await muxer._read_data_body(MAX_WINDOW_SIZE)

    trio.run(run)


@needs_hivemind
@in_swarm
async def test_a_peer_behind_a_relay_is_reached_and_sends_more_than_libp2p_relays_by_default(made: Swarm) -> None:
    async def send(stream: Stream) -> None:
        for _ in range(MUCH_BYTES >> 16):
            await stream.write(bytes(1 << 16))
        stream.close()

    await made.node(is_relay=True)
    node = await made.node(relays=made.boot)
    await node.serve(ECHO, send)
    transport = await LightTransport.start(LightConfig(identity=OURS, initial_peers=made.boot))
    try:
        transport.note_addresses(node.peer_id, [f"{made.boot[0]}/p2p-circuit"])
        stream = await transport.dial(node.peer_id, ECHO)
        assert stream.peer_id == node.peer_id
        received_bytes = 0
        while piece := await stream.read():
            received_bytes += len(piece)
        assert received_bytes == MUCH_BYTES
    finally:
        await transport.close()


@pytest.mark.thorough
@needs_hivemind
@pytest.mark.parametrize(("is_relay", "granted_bytes"), [(True, CIRCUIT_BYTES), (False, 128 << 10)])
@in_swarm
async def test_what_a_stranger_is_granted_for_a_circuit(made: Swarm, is_relay: bool, granted_bytes: int) -> None:
    """p2pd's default grants 4 GiB if it considers its address public."""
    node = await made.node(is_relay=is_relay)
    stranger = await LightTransport.start(LightConfig(identity=OURS, initial_peers=made.boot))
    try:
        async with asyncio.timeout(60):
            granted = None
            while granted is None:
                # On a busy machine the daemon serves circuits a little later than other streams.
                with suppress(PeerLost):
                    granted = await ask_reservation(stranger.dial, node.peer_id, least_bytes=0, timeout_s=5.0)
        assert granted.circuit_bytes == granted_bytes
    finally:
        await stranger.close()
    assert ("-relayService=0" in psutil.Process(pid_of(node)).cmdline()) is not is_relay


def python(code: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, timeout=60)


def test_importing_is_quiet_and_lazy_and_no_more_of_the_library_is_imported_than_is_used() -> None:
    heavy = {"trio", "libp2p", "google.protobuf", "jinja2", "numpy"}
    done = python(f"import cosine_p2p, sys; print({heavy} & sys.modules.keys())")
    assert (done.stdout, done.stderr) == ("set()\n", "")
    unused = {"requests", "httpx", "zeroconf", "rich", "websockets"}
    unused |= {"libp2p.pubsub.gossipsub", "libp2p.kad_dht.kad_dht"}
    done = python(
        "import cosine_p2p.transport.light.light, logging, sys; logging.getLogger('libp2p.any').error('boo')\n"
        f"print({unused} & sys.modules.keys())"
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "set()\n", "")


@in_real_time
async def test_peers_that_are_dialled_with_the_initial_ones_keep_to_the_rules_for_strangers() -> None:
    async with serving(OTHER_SEED) as other:
        soon = {other.peer_id: (other.maddr,)}
        nobody = f"{CLOSED_PORT}/p2p/{NOBODY}"
        transport = await LightTransport.start(
            LightConfig(identity=OURS, initial_peers=(nobody,), dialled_soon=soon)
        )
        assert transport.initial_peers == (NOBODY,)
        assert transport.met == frozenset()
        stream = await transport.dial(other.peer_id, ECHO)
        assert transport.met == {other.peer_id}
        stream.close()
        await transport.close()
        denied = PeerGate(denied=DeniedPeers([other.peer_id]))
        theirs = LightConfig(identity=OURS, initial_peers=(nobody,), dialled_soon=soon, gate=denied)
        assert "not talked to" in (await lost(LightTransport.start(theirs))).reason
        elsewhere = f"/dns4/nowhere.invalid/tcp/4001/p2p/{NOBODY}"
        public = LightConfig(identity=OURS, initial_peers=(elsewhere,), dialled_soon=soon)
        assert "strangers' private addresses" in (await lost(LightTransport.start(public))).reason


@served
async def test_nobody_opens_streams_to_a_client(transport: LightTransport, server: Server) -> None:
    async def knock(host: Any) -> str:
        try:
            await host.new_stream(ID.from_string(OURS.peer_id), ["/ipfs/id/1.0.0"])
        except Exception as error:
            return f"refused ({type(error).__name__})"
        return "let in"

    assert "refused" in await server.run(knock)
    with pytest.raises(LocalProtocolError):
        await transport.serve(ECHO, lambda _: asyncio.sleep(0))
