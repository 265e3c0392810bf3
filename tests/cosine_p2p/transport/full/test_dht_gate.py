"""The DHT of a private swarm on loopback: members store and find records, strangers are refused by every call."""

import time
from typing import Any

import pytest

from cosine_p2p.dht.postings import dht_key
from cosine_p2p.transport.full.hivemind import HivemindTransport
from cosine_p2p.transport.peer_gate import PeerGate
from cosine_protocol.errors import LocalProtocolError
from cosine_protocol.records import Role, cell_name
from tests.cosine_p2p.private_swarm import PrivateSwarm
from tests.cosine_p2p.samples import TARGET, record_of
from tests.cosine_p2p.transport.full_nodes import Swarm, dht_of, directory_of, in_swarm

pytestmark = pytest.mark.network


@pytest.fixture
def private() -> PrivateSwarm:
    swarm = PrivateSwarm()
    swarm.clock.now_s = time.time()
    return swarm


async def member(made: Swarm, private: PrivateSwarm, **settings: Any) -> HivemindTransport:
    return await made.node(
        gate_of=lambda peer_id: PeerGate(private.member(peer_id)), network=private.swarm_id, **settings
    )


async def announce(node: HivemindTransport, **changes: Any) -> None:
    identity, directory = directory_of(node)
    certificate = {"certificate": node.config.gate.certificate or None}
    await directory.announce(record_of(identity, now_s=time.time(), **(certificate | changes)), [TARGET])


async def found_by(node: HivemindTransport) -> set[str]:
    return {record.peer_id for record in await directory_of(node)[1].find(Role.DRAFTER, TARGET)}


@in_swarm
async def test_members_store_and_find_certified_records_only(made: Swarm, private: PrivateSwarm) -> None:
    first, second = await member(made, private), await member(made, private)
    client = await member(made, private, client_mode=True)
    for certificate in (None, b"junk", private.admit(first.peer_id)):
        with pytest.raises(LocalProtocolError, match="no node would store our record"):
            await announce(second, certificate=certificate)
    for node in (first, second):
        await announce(node)
    assert await found_by(client) == {first.peer_id, second.peer_id}
    membership = client.config.gate.membership
    assert membership is not None
    membership.take_revocations(private.revoke(second.peer_id))
    assert await found_by(client) == {first.peer_id}


@in_swarm
async def test_a_stranger_gets_nothing_from_any_call_of_the_dht(made: Swarm, private: PrivateSwarm) -> None:
    from cosine_p2p.transport.full.library import DHTID, PeerID, dht_pb2

    node = await member(made, private)
    await announce(node)
    stranger = await made.stranger(joins=False)
    stub = stranger.protocol.get_stub(PeerID.from_base58(node.peer_id))
    info = dht_pb2.NodeInfo(node_id=stranger.node_id.to_bytes())
    cell = cell_name(network=private.swarm_id, role="drafter", target=TARGET, prefix="")
    key = DHTID.generate(source=cell).to_bytes()
    assert key == dht_key(cell)
    stolen = dht_pb2.PingRequest(peer=info)
    stolen.auth.client_access_token.signature = node.config.gate.certificate
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
    # It is not in the routing table either.
    assert not dht_of(node).routing_table.uid_to_peer_id
