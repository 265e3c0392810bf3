"""Full nodes on loopback: deadlines, a killed daemon, hostile DHT peers, and no leftovers."""

import asyncio
import os
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from itertools import count
from pathlib import Path

import pytest

from cosine_p2p.transport.base import Stream
from cosine_p2p.transport.full.hivemind import HivemindTransport
from cosine_p2p.transport.peer_gate import PeerGate
from cosine_p2p.trust.denied_peers import BanFile, DeniedPeers
from cosine_protocol.errors import PeerLost
from cosine_protocol.records import Role
from tests.cosine_p2p.samples import TARGET, identity_of, record_of
from tests.cosine_p2p.transport.full_nodes import Swarm, directory_of, echo, in_swarm, lost, pid_of, swarm

pytestmark = pytest.mark.network

ECHO = "/test/echo/1.0.0"
BACK_S = 60.0
"""Bounds the restart of a killed daemon, which takes seconds."""


async def answers(stream: Stream) -> bool:
    await stream.write(b"x")
    return await stream.read() == b"x"


def test_the_network_needs_no_torch() -> None:
    unused = {"torch", "hivemind.averaging"}
    code = (
        "import cosine_p2p.transport.full.library, sys\n"
        "address = sys.modules['hivemind.utils.multiaddr.multiaddr'].Multiaddr('/ip4/127.0.0.1/tcp/1')\n"
        "assert str(type(address)(address.to_bytes())) == '/ip4/127.0.0.1/tcp/1'\n"
        f"print({unused} & sys.modules.keys())"
    )
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("set()\n", "")


@in_swarm
async def test_protocols_are_served_again_after_they_were_withdrawn(made: Swarm) -> None:
    """A node may end and start again in one process, such as a head whose stages are back."""
    a, b = await made.node(), await made.node(client_mode=True)

    async def no_change() -> None:
        return

    for _ in range(2):
        async with a.serving({ECHO: echo}, no_change):
            # The last handler serves.
            await a.serve(ECHO, echo)
            stream = await b.dial(a.peer_id, ECHO)
            assert await answers(stream)
        assert await stream.read() == b""
        # For a moment the dialler's daemon still considers the protocol served.
        with pytest.raises(PeerLost, match="does not serve"):
            async with asyncio.timeout(20):
                while True:
                    (await b.dial(a.peer_id, ECHO)).close()
                    await asyncio.sleep(0.05)
    assert a.open_streams == 0


@in_swarm
async def test_a_dial_waits_for_a_slow_restart_of_the_daemon(made: Swarm, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise a client whose daemon died would count all verifiers as lost, one after the other."""
    server, client = await made.node(), await made.node(client_mode=True, dial_timeout_s=0.2)
    await server.serve(ECHO, echo)
    build, is_down, may_come = HivemindTransport._build, asyncio.Event(), asyncio.Event()

    async def build_late(transport: HivemindTransport, peers: list[str]) -> None:
        is_down.set()
        await may_come.wait()
        transport.config = replace(transport.config, dial_timeout_s=BACK_S)
        await build(transport, peers)

    monkeypatch.setattr(HivemindTransport, "_build", build_late)
    os.kill(pid_of(client), signal.SIGKILL)
    await is_down.wait()
    dialling = asyncio.ensure_future(client.dial(server.peer_id, ECHO))
    await asyncio.wait([dialling], timeout=0.5)
    assert not dialling.done()
    may_come.set()
    assert await answers(await dialling)


@pytest.mark.thorough
@in_swarm
async def test_who_floods_again_each_time_it_was_disconnected_is_banned(made: Swarm, tmp_path: Path) -> None:
    """The clock advances at each read."""
    from cosine_p2p.transport.full.library import DHTID, PeerID

    ticks = count()
    bans = BanFile(tmp_path / "bans.json", clock=lambda: 0.0)
    denied = DeniedPeers(bans=bans, clock=lambda: float(next(ticks)))
    honest = await made.node(gate=PeerGate(denied=denied))
    _, flooder = await made.owner()
    victim = PeerID.from_base58(honest.peer_id)
    keys = [DHTID.generate(source=f"key {number}") for number in range(8000)]
    async with asyncio.timeout(60.0):
        while flooder.peer_id.to_base58() not in bans.read():
            await asyncio.gather(*(flooder.protocol.call_find(victim, keys) for _ in range(100)))
    assert await flooder.protocol.call_ping(victim) is None
    other = await made.stranger()
    assert await other.protocol.call_ping(victim) is not None
    assert len(bans.read()) == 1


@pytest.mark.thorough
@in_swarm
async def test_a_peer_with_too_many_streams_is_turned_away(made: Swarm, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cosine_p2p.transport.full.hivemind.MAX_STREAMS_EACH", 3)
    a, b, c = [await made.node() for _ in range(3)]
    await a.serve(ECHO, echo)
    streams = [await b.dial(a.peer_id, ECHO) for _ in range(3)]
    assert all([await answers(stream) for stream in streams])
    assert await (await b.dial(a.peer_id, ECHO)).read() == b""
    assert await answers(await c.dial(a.peer_id, ECHO))
    streams[0].close()
    await asyncio.sleep(0.1)
    assert await answers(await b.dial(a.peer_id, ECHO))


def test_a_close_leaves_nothing(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    from cosine_p2p.transport.full.dht_node import RPC_TIMEOUT_S

    async def run() -> list[int]:
        pids = []
        async with swarm() as made:
            first = await made.node()
            await first.serve(ECHO, echo)
            before = asyncio.all_tasks()
            for client_mode in (False, True):
                place = replace(first.config, identity_file=made.identity_file(), initial_peers=made.boot)
                transport = await HivemindTransport.start(replace(place, client_mode=client_mode))
                assert await answers(await transport.dial(first.peer_id, ECHO))
                pids.append(pid_of(transport))
                await transport.close()
            # The other node's tasks end by themselves; a forgotten sleep does not.
            if left := asyncio.all_tasks() - before:
                _, left = await asyncio.wait(left, timeout=RPC_TIMEOUT_S / 2)
            assert not left
        return pids

    # Concurrent tests make such folders too, and the path of a socket has at most 107 bytes.
    with tempfile.TemporaryDirectory(prefix="c-") as folder, monkeypatch.context() as patched:
        patched.setattr(tempfile, "tempdir", folder)
        pids = asyncio.run(run())
        assert list(Path(folder).glob("cosine-p2p-*")) == []
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)
    assert capfd.readouterr().out == ""


@in_swarm
async def test_nodes_that_meet_later_are_in_one_dht(made: Swarm) -> None:
    """As nodes of a local network that start at the same moment."""
    a, b = await made.node(initial_peers=()), await made.node(initial_peers=())
    changes: list[str] = []

    async def announce() -> None:
        changes.append(b.peer_id)

    identity, directory = directory_of(a)
    await directory.announce(record_of(identity, now_s=time.time()), [TARGET])
    assert a.is_alone and b.is_alone
    assert not await directory_of(b)[1].find(Role.DRAFTER, TARGET, wanted=1)
    async with b.serving({}, announce):
        assert await b.meet(a.peer_id, await a.visible_maddrs())
        assert not await b.meet(a.peer_id, await a.visible_maddrs())
    assert (b.is_alone, changes) == (False, [b.peer_id])
    [found] = await directory_of(b)[1].find(Role.DRAFTER, TARGET, wanted=1)
    assert found.peer_id == a.peer_id
    await lost(b.meet(identity_of(9).peer_id, await a.visible_maddrs()))
