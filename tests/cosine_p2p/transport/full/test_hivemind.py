"""The real thing on loopback: streams, deadlines, a killed daemon, and hostile DHT peers."""

import asyncio
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from cosine_p2p.directory.dht import DhtDirectory
from cosine_p2p.directory.postings import MAX_OWNER_CELLS, StoredValue, dht_key, subkey_bytes
from cosine_p2p.storage.identity_file import load_identity
from cosine_p2p.transport.base import Stream
from cosine_p2p.transport.config import TransportConfig
from cosine_p2p.transport.full.hivemind import MAX_STREAMS_EACH, HivemindTransport
from cosine_p2p.transport.peer_gate import PeerGate
from cosine_p2p.trust.denied_peers import BanFile, DeniedPeers
from cosine_protocol import limits
from cosine_protocol.codec import encode_body
from cosine_protocol.errors import PeerLost, UsageError
from cosine_protocol.identity import Identity
from cosine_protocol.records import Role, cell_key, cell_name, seal_record
from tests.cosine_p2p.samples import NETWORK, TARGET, identity_of, record_of
from tests.cosine_p2p.transport.full_nodes import HOST, Swarm, in_swarm, swarm
from tests.scenes import in_real_time
from tests.thoroughness import quick_first

pytestmark = pytest.mark.network

ECHO = "/test/echo/1.0.0"
FROZEN_S = 3.0
"""Longer than a dial takes between processes of a busy machine."""
BACK_S = 60.0
"""A daemon that was killed is back after seconds; on a busy machine after more."""
ROOT = cell_name(network=NETWORK, role="drafter", target=TARGET, prefix="")


async def echo(stream: Stream) -> None:
    while data := await stream.read():
        await stream.write(data)


@in_swarm
async def test_a_node_joins_through_a_peer_that_begins_to_listen_a_moment_later(
    made: Swarm, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cosine_p2p.transport.full.hivemind.JOIN_AGAIN_S", 0.0)
    build = HivemindTransport._build
    late = await made.node()
    [maddr] = await late.visible_maddrs()
    await late.close()
    late_config = replace(late.config, host_maddrs=(maddr.partition("/p2p/")[0],))

    async def build_then_begin(transport: HivemindTransport, peers: Sequence[str]) -> None:
        try:
            await build(transport, peers)
        except PeerLost:
            made.keep(await HivemindTransport.start(late_config))
            raise

    monkeypatch.setattr(HivemindTransport, "_build", build_then_begin)
    joined = await made.node(initial_peers=(maddr,))
    assert joined.peer_id != late.peer_id


def directory_of(transport: HivemindTransport) -> tuple[Identity, DhtDirectory]:
    identity = load_identity(transport.config.identity_file)
    return identity, DhtDirectory(transport, identity, network=NETWORK, opener=transport.opener)


async def read_exactly(stream: Stream, size: int) -> bytes:
    data = b""
    while len(data) < size:
        piece = await stream.read()
        assert piece, "the stream ended early"
        assert len(piece) <= 64 << 10
        data += piece
    return data


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


@pytest.mark.parametrize("client_mode", quick_first([False, True]))
@in_swarm
async def test_leaving_leaves_no_task_behind(made: Swarm, client_mode: bool) -> None:
    await made.node()
    before = asyncio.all_tasks()
    settings = TransportConfig(
        identity_file=made.identity_file(),
        network=NETWORK,
        initial_peers=made.boot,
        host_maddrs=(HOST,),
        client_mode=client_mode,
    )
    from cosine_p2p.transport.full.dht_node import RPC_TIMEOUT_S

    transport = await HivemindTransport.start(settings)
    await transport.close()
    # The other node's own tasks end by themselves; a sleep that nobody ends does not.
    if left := asyncio.all_tasks() - before:
        _, left = await asyncio.wait(left, timeout=RPC_TIMEOUT_S / 2)
    assert not left


def test_a_failing_handler_costs_only_its_stream(caplog: pytest.LogCaptureFixture) -> None:
    async def run() -> None:
        async with swarm() as made:
            a, b = await made.node(), await made.node()

            async def fail(stream: Stream) -> None:
                raise ValueError("a bug")

            await a.serve("/test/fail/1.0.0", fail)
            await a.serve(ECHO, echo)
            assert await (await b.dial(a.peer_id, "/test/fail/1.0.0")).read() == b""
            stream = await b.dial(a.peer_id, ECHO)
            await stream.write(b"still here")
            assert await read_exactly(stream, 10) == b"still here"

    asyncio.run(run())
    assert "a bug" in caplog.text


@pytest.mark.thorough
@in_swarm
async def test_closing_wakes_a_blocked_reader_and_a_blocked_writer(made: Swarm) -> None:
    a, b = await made.node(), await made.node()

    async def hold(stream: Stream) -> None:
        await asyncio.sleep(60)

    await a.serve(ECHO, hold)
    stream = await b.dial(a.peer_id, ECHO)
    reading = asyncio.ensure_future(stream.read())
    writing = asyncio.ensure_future(stream.write(bytes(32 << 20)))
    await asyncio.sleep(0.3)
    assert not writing.done()
    stream.close()
    async with asyncio.timeout(3):
        assert await reading == b""
        with pytest.raises(PeerLost):
            await writing


@pytest.mark.thorough
@in_swarm
async def test_as_many_streams_at_once_as_one_peer_may_have(made: Swarm) -> None:
    a, b = await made.node(), await made.node()
    await a.serve(ECHO, echo)

    async def once(number: int) -> None:
        stream = await b.dial(a.peer_id, ECHO)
        await stream.write(b"%04d" % number)
        assert await read_exactly(stream, 4) == b"%04d" % number
        stream.close()

    await asyncio.gather(*map(once, range(MAX_STREAMS_EACH)))


async def reason_of(dialler: HivemindTransport, peer_id: str, protocol: str = ECHO) -> str:
    start_s = time.monotonic()
    with pytest.raises(PeerLost) as lost:
        await dialler.dial(peer_id, protocol)
    assert time.monotonic() - start_s < dialler.config.dial_timeout_s + 1
    return lost.value.reason


@pytest.mark.thorough
@in_swarm
async def test_dials_that_cannot_be_fail_in_time(made: Swarm) -> None:
    a, b = await made.node(), await made.node(dial_timeout_s=2.0)
    c = await made.node()
    await c.serve(ECHO, echo)
    (await b.dial(c.peer_id, ECHO)).close()
    assert "does not serve /test/echo/1.0.0" in await reason_of(b, a.peer_id)
    assert "no address" in await reason_of(b, identity_of(9).peer_id)
    assert "not a peer id" in await reason_of(b, "nonsense")
    assert await reason_of(b, b.peer_id)
    await c.close()
    assert await reason_of(b, c.peer_id)
    with pytest.raises(PeerLost):
        await b.connect(f"/ip4/127.0.0.1/tcp/1/p2p/{identity_of(9).peer_id}")


@pytest.mark.thorough
@in_swarm
async def test_a_frozen_daemon_never_hangs_a_dial(made: Swarm) -> None:
    a, b = await made.node(), await made.node(dial_timeout_s=FROZEN_S)
    await a.serve(ECHO, echo)
    assert b.daemon_pid is not None
    os.kill(b.daemon_pid, signal.SIGSTOP)
    # Its threads stop one after the other.
    await asyncio.sleep(0.2)
    try:
        assert f"within {FROZEN_S:g} s" in await reason_of(b, a.peer_id)
    finally:
        os.kill(b.daemon_pid, signal.SIGCONT)
    (await b.dial(a.peer_id, ECHO)).close()


@pytest.mark.thorough
@in_swarm
async def test_a_killed_daemon_comes_back_with_everything(made: Swarm) -> None:
    a, b, c = await made.node(), await made.node(), await made.node()
    await a.serve(ECHO, echo)
    identity, directory = directory_of(b)
    _, reading = directory_of(c)
    await directory.announce(record_of(identity, now_s=time.time()), [TARGET])
    before, back = await a.visible_maddrs(), asyncio.Event()

    async def is_back() -> None:
        back.set()

    a.on_restart(is_back)
    stream = await b.dial(a.peer_id, ECHO)
    assert a.daemon_pid is not None
    os.kill(a.daemon_pid, signal.SIGKILL)
    async with asyncio.timeout(BACK_S):
        assert await stream.read() == b""
        await back.wait()
        await dialled_again(b, a.peer_id)
        await dialled_again(a, b.peer_id, expected="does not serve")
    assert await a.visible_maddrs() == before
    assert a.restarts == 1
    assert [record.peer_id for record in await reading.find(Role.DRAFTER, TARGET)] == [b.peer_id]
    _, of_a = directory_of(a)
    assert [record.peer_id for record in await of_a.find(Role.DRAFTER, TARGET)] == [b.peer_id]


async def dialled_again(dialler: HivemindTransport, peer_id: str, expected: str = "-") -> None:
    """libp2p does not dial again for some seconds after a failure."""
    while True:
        try:
            (await dialler.dial(peer_id, ECHO)).close()
        except PeerLost as lost:
            if expected in lost.reason:
                return
            assert (lost.retry_after_s is None) == ("a moment ago" not in lost.reason)
            await asyncio.sleep(0.2)
        else:
            return


@in_swarm
async def test_records_are_stored_and_found(made: Swarm) -> None:
    a, b = await made.node(), await made.node()
    client = await made.node(client_mode=True)
    for node in (a, b):
        identity, directory = directory_of(node)
        record = record_of(identity, now_s=time.time())
        await directory.announce(record, [TARGET, record.target_digest.hex()])
    _, reading = directory_of(client)
    for name in (TARGET, (b"\x01" * 32).hex()):
        found = await reading.find(Role.DRAFTER, name)
        assert {record.peer_id for record in found} == {a.peer_id, b.peer_id}
    assert await reading.find(Role.VERIFIER, TARGET) == []
    identity, directory = directory_of(b)
    goodbye = record_of(identity, now_s=time.time(), lifetime_s=1.0, sequence=int(time.time() * 1000) + 5)
    await directory.announce(goodbye, [TARGET])
    await asyncio.sleep(1.1)
    assert [record.peer_id for record in await reading.find(Role.DRAFTER, TARGET)] == [a.peer_id]


@in_swarm
async def test_an_isolated_first_node_keeps_its_own_records(made: Swarm) -> None:
    identity, directory = directory_of(await made.node())
    await directory.announce(record_of(identity, now_s=time.time()), [TARGET])
    assert len(await directory.find(Role.DRAFTER, TARGET)) == 1


async def plant(stranger: Any, honest: HivemindTransport, **value: Any) -> bool | None:
    """Whether an honest node stores this when asked directly; None where it does not answer."""
    from cosine_p2p.transport.full.library import DHTID, MSGPackSerializer, PeerID

    what = value["content"]
    packed = MSGPackSerializer.dumps(list(what) if isinstance(what, tuple) else what)
    answers = await stranger.protocol.call_store(
        PeerID.from_base58(honest.peer_id),
        keys=[DHTID.generate(source=value.get("cell", ROOT))],
        values=[packed],
        expiration_time=[value["expires_at_s"]],
        subkeys=[value.get("subkey")],
        in_cache=value.get("in_cache", False),
    )
    return None if answers is None else bool(answers[0])


def hold(node: HivemindTransport, owner: Identity) -> bool:
    """Whether a node keeps an owner's record in the first cell."""
    posting = node._checker.check(
        key=dht_key(ROOT),
        subkey=subkey_bytes(owner.peer_id),
        value=encode_body(StoredValue(*content(owner))),
        expires_at_s=time.time() + 200,
        now_s=time.time(),
    )
    return node._store.put(dht_key(ROOT), posting, time.time())


def content(signer: Identity, cell: str = ROOT, **changes: Any) -> tuple[str, bytes]:
    record = record_of(changes.pop("owner", signer), now_s=time.time(), **changes)
    return cell, seal_record(record, signer, key=cell)


@in_swarm
async def test_an_honest_node_refuses_what_is_not_the_owners(made: Swarm, monkeypatch: pytest.MonkeyPatch) -> None:
    # Else it would not answer so many bad values.
    monkeypatch.setattr("cosine_p2p.transport.full.dht_service.BAD_VALUE_UNITS", 0.0)
    honest = await made.node()
    owner, stranger = await made.owner()
    thief = identity_of(2)
    soon_s = time.time() + 200
    good = content(owner)
    old = content(owner, sequence=1)
    name = owner.peer_id

    async def planted(what: Any, **more: Any) -> bool:
        given = {"content": what, "subkey": name, "expires_at_s": soon_s} | more
        is_stored = await plant(stranger, honest, **given)
        assert is_stored is not None
        return is_stored

    assert await planted(good)
    assert not await planted(old, expires_at_s=soon_s + 50)
    assert not await planted(content(thief, owner=owner, sequence=1 << 50))
    # Records of others are stored by themselves, also good ones.
    assert not await planted(content(thief), subkey=thief.peer_id)
    assert not await planted(good, subkey=thief.peer_id)
    assert not await planted(good, subkey=None)
    assert not await planted(good, subkey=[1, 2])
    assert not await planted(good, expires_at_s=time.time() + 800)
    assert not await planted(content(owner, sequence=1 << 50), cell="elsewhere")
    assert not await planted(content(owner, sequence=1 << 50), in_cache=True)
    assert not await planted("wipe", subkey=None, expires_at_s=time.time() + 1e6)
    _, reading = directory_of(honest)
    (found,) = await reading.find(Role.DRAFTER, TARGET)
    assert (found.peer_id, found.sequence > 1) == (name, True)


@pytest.mark.thorough
@in_swarm
async def test_the_65th_owner_is_refused_and_announces_one_level_down(made: Swarm) -> None:
    honest, other = await made.node(), await made.node()
    for node in (honest, other):
        for number in range(1, limits.MAX_CELL_OWNERS + 1):
            assert hold(node, identity_of(number))
    owner, owning = await made.owner()
    for node in (honest, other):
        given = {"content": content(owner), "subkey": owner.peer_id, "expires_at_s": time.time() + 200}
        assert await plant(owning, node, **given) is False
    # The stranger takes it into the first cell, but that is one of two.
    identity, directory = directory_of(honest)
    await directory.announce(record_of(identity, now_s=time.time()), [TARGET])
    found = await directory.find(Role.DRAFTER, TARGET)
    assert len(found) == limits.MAX_CELL_OWNERS + 1
    below = cell_key(network=NETWORK, role="drafter", target=TARGET, owner=honest.peer_id, depth=1)
    assert dht_key(below) in other._store.all_keys()


@pytest.mark.thorough
@in_real_time
async def test_a_lying_storing_node_hides_nothing_an_honest_one_has() -> None:
    """It shows a forged record beside good ones, and claims that its answer lives for ever."""
    from cosine_p2p.transport.full.library import (
        DHTID,
        DictionaryDHTValue,
        MSGPackSerializer,
        ValueWithExpiration,
    )

    async with swarm() as made:
        honest = await made.node()
        liar = await made.stranger()
        reader = await made.node(client_mode=True)
        identity, directory = directory_of(honest)
        await directory.announce(record_of(identity, now_s=time.time()), [TARGET])
        one, victim = identity_of(1), identity_of(2)
        answer = DictionaryDHTValue()
        for owner, signer in ((one, one), (victim, one)):
            packed = MSGPackSerializer.dumps(list(content(signer, owner=owner)))
            answer.store(owner.peer_id, packed, time.time() + 200)
        answer.store(7, b"junk", time.time() + 200)
        liar.protocol.storage.data[DHTID.generate(source=ROOT)] = ValueWithExpiration(answer, float("inf"))
        _, reading = directory_of(reader)
        found = {record.peer_id for record in await reading.find(Role.DRAFTER, TARGET)}
        assert found == {honest.peer_id, one.peer_id}


@pytest.mark.thorough
@in_real_time
async def test_a_peer_is_one_node_of_the_dht_however_many_ids_it_invents() -> None:
    """Ids around the key of a cell: all who read or write it would ask this peer and nobody else."""
    from cosine_p2p.transport.full.dht_node import node_id_of
    from cosine_p2p.transport.full.library import DHTID, PeerID

    async with swarm() as made:
        honest = [await made.node() for _ in range(2)]
        liar = await made.stranger()
        invented = [DHTID(int(DHTID.generate(source=ROOT)) ^ (number + 1)) for number in range(40)]
        for node_id in invented:
            liar.protocol.routing_table.add_or_update_node(node_id, liar.peer_id)
            liar.protocol.node_info.node_id = node_id.to_bytes()
            for node in honest:
                assert await liar.protocol.call_ping(PeerID.from_base58(node.peer_id)) is not None
        liar.protocol.node_info.node_id = node_id_of(liar.peer_id).to_bytes()
        identity, directory = directory_of(honest[0])
        await directory.announce(record_of(identity, now_s=time.time()), [TARGET])
        reader = await made.node(client_mode=True)
        _, reading = directory_of(reader)
        assert [record.peer_id for record in await reading.find(Role.DRAFTER, TARGET)] == [identity.peer_id]
        for node in (*honest, reader):
            known = node._dht.protocol.routing_table.uid_to_peer_id
            assert all(node_id == node_id_of(peer_id) for node_id, peer_id in known.items())
            assert known.keys().isdisjoint(invented)


@pytest.mark.thorough
@in_swarm
async def test_a_second_of_invented_records_hides_nobody_and_fills_nothing(made: Swarm) -> None:
    """704 records of invented owners and as many targets of one's own, as fast as they are taken."""
    honest = [await made.node() for _ in range(3)]
    identity, directory = directory_of(honest[0])
    await directory.announce(record_of(identity, now_s=time.time()), [TARGET])
    owner, flooder = await made.owner()
    until_s = time.time() + 200
    taken = []
    for number in range(100, 804):
        sybil = identity_of(number)
        given = {"content": content(sybil), "subkey": sybil.peer_id, "expires_at_s": until_s}
        taken.append(await plant(flooder, honest[0], **given))
        target = f"invented/{number}"
        cell = cell_name(network=NETWORK, role="drafter", target=target, prefix="")
        own = content(owner, cell, target=target)
        taken.append(
            await plant(flooder, honest[1], content=own, subkey=owner.peer_id, expires_at_s=until_s, cell=cell)
        )
    assert taken.count(True) == MAX_OWNER_CELLS
    assert taken.count(None) > 500
    _, reading = directory_of(await made.node(client_mode=True))
    for _ in range(12):
        assert [record.peer_id for record in await reading.find(Role.DRAFTER, TARGET)] == [identity.peer_id]
    assert max(node._store.stored_bytes for node in honest) < 64 << 10
    newcomer, announcing = directory_of(honest[2])
    await announcing.announce(record_of(newcomer, now_s=time.time()), [TARGET])
    assert len(await reading.find(Role.DRAFTER, TARGET)) == 2


@pytest.mark.thorough
@in_real_time
async def test_honest_peers_are_served_beside_floods_of_the_dht() -> None:
    """Bad signatures and questions of 8,000 keys, by two peers without a pause."""
    from cosine_p2p.transport.full.library import DHTID, PeerID

    async with swarm() as made:
        honest = [await made.node() for _ in range(2)]
        identity, directory = directory_of(honest[0])
        await directory.announce(record_of(identity, now_s=time.time()), [TARGET])
        _, reading = directory_of(await made.node(client_mode=True))
        flooders = [(await made.owner())[1] for _ in range(2)]
        victim = PeerID.from_base58(honest[0].peer_id)
        keys = [DHTID.generate(source=f"key {number}") for number in range(8000)]
        bad = {"content": [ROOT, b"junk"], "subkey": flooders[0].peer_id.to_base58()}

        is_over = asyncio.Event()

        async def store() -> None:
            while not is_over.is_set():
                await plant(flooders[0], honest[0], expires_at_s=time.time() + 200, **bad)

        async def find() -> None:
            while not is_over.is_set():
                await flooders[1].protocol.call_find(victim, keys)

        flooding = [asyncio.ensure_future(flood()) for flood in (store, find)]
        try:
            for _ in range(12):
                found = await reading.find(Role.DRAFTER, TARGET)
                assert [record.peer_id for record in found] == [identity.peer_id]
        finally:
            # Not cancelled: hivemind's calls may take that for their own deadline, and the flood would go on.
            is_over.set()
            await asyncio.gather(*flooding)


@pytest.mark.thorough
@in_real_time
async def test_who_floods_again_each_time_it_was_disconnected_is_banned(tmp_path: Path) -> None:
    """By the node itself, for an hour of a clock that goes on with each look at it."""
    from cosine_p2p.transport.full.library import DHTID, PeerID

    ticks = count()
    bans = BanFile(tmp_path / "bans.json", clock=lambda: 0.0)
    denied = DeniedPeers(bans=bans, clock=lambda: float(next(ticks)))
    async with swarm() as made:
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


@in_swarm
async def test_starts_that_cannot_be_name_the_address(made: Swarm) -> None:
    nobody = f"/ip4/127.0.0.1/tcp/1/p2p/{identity_of(9).peer_id}"
    with pytest.raises(PeerLost, match=nobody):
        await made.node(initial_peers=(nobody,))
    for wrong in ("nonsense", "/ip4/127.0.0.1/tcp/1", "/ip4/1.2.3/tcp/1/p2p/x"):
        with pytest.raises(UsageError, match=wrong):
            await made.node(initial_peers=(wrong,))
    with pytest.raises(UsageError, match="instead of 0"):
        await made.node(announce_maddrs=(HOST,))
    with pytest.raises(UsageError, match=r"/ip4/192\.0\.2\.1/tcp/0"):
        await made.node(host_maddrs=("/ip4/192.0.2.1/tcp/0",))
    a = await made.node()
    port = (await a.visible_maddrs())[0].split("/")[4]
    with pytest.raises(UsageError, match=f"/tcp/{port} is in use"):
        await made.node(host_maddrs=(f"/ip4/127.0.0.1/tcp/{port}",))


@pytest.mark.thorough
@in_swarm
async def test_a_keyboard_interrupt_does_not_reach_the_daemon(made: Swarm) -> None:
    a = await made.node()
    assert a.daemon_pid is not None
    assert os.getpgid(a.daemon_pid) != os.getpgid(0)


@pytest.mark.thorough
@in_swarm
async def test_a_peer_with_too_many_streams_is_turned_away_and_others_are_served(
    made: Swarm, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cosine_p2p.transport.full.hivemind.MAX_STREAMS_EACH", 3)
    a, b, c = [await made.node() for _ in range(3)]
    await a.serve(ECHO, echo)
    streams = [await b.dial(a.peer_id, ECHO) for _ in range(3)]
    for stream in streams:
        await stream.write(b"x")
        assert await read_exactly(stream, 1) == b"x"
    assert await (await b.dial(a.peer_id, ECHO)).read() == b""
    other = await c.dial(a.peer_id, ECHO)
    await other.write(b"z")
    assert await read_exactly(other, 1) == b"z"
    streams[0].close()
    await asyncio.sleep(0.1)
    again = await b.dial(a.peer_id, ECHO)
    await again.write(b"y")
    assert await read_exactly(again, 1) == b"y"


@pytest.mark.thorough
@in_swarm
async def test_announced_addresses_are_the_visible_ones(made: Swarm) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    outside = "/ip4/127.0.0.1/tcp/4001"
    a = await made.node(host_maddrs=(f"/ip4/127.0.0.1/tcp/{port}",), announce_maddrs=(outside,))
    assert await a.visible_maddrs() == (f"{outside}/p2p/{a.peer_id}",)


def test_a_close_leaves_nothing(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    async def run() -> tuple[list[int], int]:
        pids = []
        async with swarm() as made:
            for _ in range(2):
                transport = await made.node()
                await transport.serve(ECHO, echo)
                assert transport.daemon_pid is not None
                pids.append(transport.daemon_pid)
            (await transport.dial(made.boot[0].rsplit("/", 1)[1], ECHO)).close()
        ours = [
            task
            for task in asyncio.all_tasks() - {asyncio.current_task()}
            if "cosine_p2p" in str(getattr(task.get_coro(), "cr_code", ""))
        ]
        return pids, len(ours)

    # Tests that run beside this one make such folders too; and a socket has a path of at most 107 bytes.
    with tempfile.TemporaryDirectory(prefix="c-") as folder, monkeypatch.context() as patched:
        patched.setattr(tempfile, "tempdir", folder)
        pids, tasks = asyncio.run(run())
        assert list(Path(folder).glob("cosine-p2p-*")) == []
    assert tasks == 0
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)
    assert capfd.readouterr().out == ""
