"""The DHT of a private swarm on loopback: members store and find, and a stranger gets a refusal from every call."""

import asyncio
import tempfile
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from cosine_p2p.directory.dht import DhtDirectory
from cosine_p2p.directory.postings import dht_key
from cosine_p2p.storage.identity_file import load_identity
from cosine_p2p.transport.base import Stream
from cosine_p2p.transport.config import TransportConfig
from cosine_p2p.transport.full.hivemind import HivemindTransport
from cosine_p2p.transport.peer_gate import PeerGate
from cosine_p2p.trust.denied_peers import DeniedPeers
from cosine_p2p.trust.membership import Membership
from cosine_protocol.errors import LocalProtocolError, PeerLost
from cosine_protocol.protocols import MESSAGES
from cosine_protocol.records import NodeRecord, Role, cell_name
from tests.cosine_p2p.private_swarm import PrivateSwarm
from tests.cosine_p2p.samples import TARGET, record_of
from tests.scenes import as_test

pytestmark = pytest.mark.network

HOST = "/ip4/127.0.0.1/tcp/0"


class Nodes:
    """Real nodes on loopback, members of one private swarm or none."""

    def __init__(self, folder: Path, stack: AsyncExitStack) -> None:
        self.swarm = PrivateSwarm()
        self.swarm.clock.now_s = time.time()
        self.boot: tuple[str, ...] = ()
        self._folder = folder
        self._stack = stack
        self._made = 0

    async def node(self, gate: Callable[[str], PeerGate] | None = None, **settings: Any) -> HivemindTransport:
        """A node whose gate is made for its peer id; that of a member if nothing else is said."""
        self._made += 1
        file = self._folder / f"identity{self._made}"
        made = (gate or self.member)(load_identity(file).peer_id)
        place = {"initial_peers": self.boot, "host_maddrs": (HOST,), "network": self.swarm.swarm_id} | settings
        transport = await HivemindTransport.start(TransportConfig(identity_file=file, gate=made, **place))
        self._stack.push_async_callback(transport.close)
        self.boot = self.boot or await transport.visible_maddrs()
        return transport

    def member(self, peer_id: str) -> PeerGate:
        return PeerGate(self.swarm.member(peer_id))

    async def stranger(self) -> Any:
        """A DHT node of hivemind's own, with no rules, connected to the first node."""
        from cosine_p2p.transport.full.library import P2P, DHTNode

        p2p = await P2P.create(
            initial_peers=list(self.boot), host_maddrs=[HOST], auto_nat=False, nat_port_map=False
        )
        self._stack.push_async_callback(p2p.shutdown)
        return await DHTNode.create(p2p=p2p)


def among_nodes(play: Callable[[Nodes], Awaitable[None]]) -> None:
    async def run() -> None:
        with tempfile.TemporaryDirectory() as folder:
            async with AsyncExitStack() as stack:
                await play(Nodes(Path(folder), stack))

    asyncio.run(asyncio.wait_for(run(), 60))


in_nodes = as_test(among_nodes, given=1)


def directory_of(transport: HivemindTransport) -> DhtDirectory:
    identity = load_identity(transport.config.identity_file)
    network, membership = transport.config.network, transport.config.gate.membership
    return DhtDirectory(transport, identity, network=network, opener=transport.opener, membership=membership)


def record(transport: HivemindTransport, **changes: Any) -> NodeRecord:
    identity = load_identity(transport.config.identity_file)
    certificate = {"certificate": transport.config.gate.certificate or None}
    return record_of(identity, now_s=time.time(), **(certificate | changes))


def membership_of(transport: HivemindTransport) -> Membership:
    membership = transport.config.gate.membership
    assert membership is not None
    return membership


@in_nodes
async def test_members_store_and_find(nodes: Nodes) -> None:
    first, second = await nodes.node(), await nodes.node()
    client = await nodes.node(client_mode=True)
    for node in (first, second):
        await directory_of(node).announce(record(node), [TARGET])
    found = await directory_of(client).find(Role.DRAFTER, TARGET)
    assert {one.peer_id for one in found} == {first.peer_id, second.peer_id}


@in_nodes
async def test_a_record_without_its_owners_certificate_is_stored_by_nobody_and_dropped_by_readers(
    nodes: Nodes,
) -> None:
    first, second = await nodes.node(), await nodes.node()
    others = nodes.swarm.admit(first.peer_id)
    for certificate in (None, b"junk", others):
        with pytest.raises(LocalProtocolError, match="no node would store our record"):
            await directory_of(second).announce(record(second, certificate=certificate), [TARGET])
    await directory_of(second).announce(record(second), [TARGET])
    reading = directory_of(first)
    assert len(await reading.find(Role.DRAFTER, TARGET)) == 1
    membership_of(first).take_revocations(nodes.swarm.revoke(second.peer_id))
    assert await reading.find(Role.DRAFTER, TARGET) == []


@in_nodes
async def test_a_stranger_gets_nothing_from_any_call_of_the_dht(nodes: Nodes) -> None:
    from cosine_p2p.transport.full.library import DHTID, PeerID, dht_pb2

    member = await nodes.node()
    await directory_of(member).announce(record(member), [TARGET])
    stranger = await nodes.stranger()
    stub = stranger.protocol.get_stub(PeerID.from_base58(member.peer_id))
    info = dht_pb2.NodeInfo(node_id=stranger.node_id.to_bytes())
    cell = cell_name(network=nodes.swarm.swarm_id, role="drafter", target=TARGET, prefix="")
    key = DHTID.generate(source=cell).to_bytes()
    assert key == dht_key(cell)
    stolen = dht_pb2.PingRequest(peer=info)
    stolen.auth.client_access_token.signature = member.config.gate.certificate
    store = dht_pb2.StoreRequest(
        keys=[key], subkeys=[b""], values=[b""], expiration_time=[1.0], in_cache=[False], peer=info
    )
    for call, request, reason in (
        (stub.rpc_ping, dht_pb2.PingRequest(peer=info), "no certificate was shown"),
        (stub.rpc_ping, stolen, "the certificate is for another peer"),
        (stub.rpc_find, dht_pb2.FindRequest(keys=[key], peer=info), "no certificate was shown"),
        (stub.rpc_store, store, "no certificate was shown"),
    ):
        with pytest.raises(Exception, match=rf"^NotAMember\('{reason}'\)$"):
            await call(request, timeout=5.0)
    # Nor is it met, so nobody is told of it.
    assert not member._dht.protocol.routing_table.uid_to_peer_id


@in_nodes
async def test_a_member_takes_no_stranger_for_a_node_of_its_swarm(nodes: Nodes) -> None:
    await nodes.node(lambda _: PeerGate())
    with pytest.raises(PeerLost, match="no DHT node answers there"):
        await nodes.node()


@in_nodes
async def test_a_stranger_gets_nothing_on_any_protocol_and_a_member_what_it_asks(nodes: Nodes) -> None:
    async def echo(stream: Stream) -> None:
        while data := await stream.read():
            await stream.write(data)

    node, member = await nodes.node(), await nodes.node(client_mode=True)
    with pytest.raises(PeerLost, match="no DHT node answers there"):
        await nodes.node(lambda _: PeerGate(), client_mode=True)
    stranger = await nodes.node(lambda _: PeerGate(), initial_peers=())
    await stranger.connect(nodes.boot[0])
    for protocol in MESSAGES:
        await node.serve(protocol, echo)
        welcome = await member.dial(node.peer_id, protocol)
        await welcome.write(b"text")
        assert await welcome.read() == b"text"
        refused = await stranger.dial(node.peer_id, protocol)
        await refused.write(b"\0\0\0\1?")
        answer = await refused.read()
        assert b"this peer talks to members" in answer and b"text" not in answer
        assert await refused.read() == b""


@pytest.mark.thorough
@in_nodes
async def test_a_newer_list_of_revoked_certificates_spreads_through_the_dht(nodes: Nodes) -> None:
    knowing, other = await nodes.node(), await nodes.node()
    third = await nodes.node()
    membership_of(knowing).take_revocations(nodes.swarm.revoke(third.peer_id, sequence=3))
    # The one that asks brings it to whom it asks, and takes it from whom it asks.
    await directory_of(knowing).find(Role.DRAFTER, TARGET)
    assert membership_of(other).sequence == 3
    late = await nodes.node()
    assert membership_of(late).sequence == 3
    assert await other.read(["cell"]) == {"cell": {}}


@in_nodes
async def test_a_denied_peer_is_refused_in_a_public_swarm_too(nodes: Nodes) -> None:
    from cosine_p2p.transport.full.library import PeerID

    open_node = await nodes.node(lambda _: PeerGate())
    stranger = await nodes.stranger()
    denied = DeniedPeers([stranger.peer_id.to_base58()])
    denying = await nodes.node(lambda _: PeerGate(denied=denied))
    await denying.connect(str((await stranger.p2p.get_visible_maddrs())[0]))
    assert await denying._dht.protocol.call_ping(stranger.peer_id) is None
    assert await stranger.protocol.call_ping(PeerID.from_base58(denying.peer_id)) is None
    assert await stranger.protocol.call_ping(PeerID.from_base58(open_node.peer_id)) is not None
