"""The DHT of a private swarm on loopback: members store and find, and a stranger gets a refusal from every call."""

import time
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from cosine_p2p.directory.postings import dht_key
from cosine_p2p.transport.full.hivemind import HivemindTransport
from cosine_p2p.transport.peer_gate import PeerGate
from cosine_p2p.trust.membership import Membership
from cosine_protocol.errors import LocalProtocolError
from cosine_protocol.records import Role, cell_name
from tests.cosine_p2p.private_swarm import PrivateSwarm
from tests.cosine_p2p.samples import TARGET, record_of
from tests.cosine_p2p.transport import full_nodes
from tests.cosine_p2p.transport.full_nodes import dht_of, directory_of
from tests.scenes import as_test

pytestmark = pytest.mark.network


class Nodes:
    """Real nodes on loopback, members of one private swarm or none."""

    def __init__(self, made: full_nodes.Swarm) -> None:
        self.made = made
        self.swarm = PrivateSwarm()
        self.swarm.clock.now_s = time.time()

    async def node(self, **settings: Any) -> HivemindTransport:
        """A member."""
        return await self.made.node(
            gate_of=lambda peer_id: PeerGate(self.swarm.member(peer_id)),
            network=self.swarm.swarm_id,
            **settings,
        )


def among_nodes(play: Callable[[Nodes], Awaitable[None]]) -> None:
    async def scene(made: full_nodes.Swarm) -> None:
        await play(Nodes(made))

    full_nodes.in_swarm(scene)()


in_nodes = as_test(among_nodes, given=1)


async def announce(node: HivemindTransport, **changes: Any) -> None:
    identity, directory = directory_of(node)
    certificate = {"certificate": node.config.gate.certificate or None}
    await directory.announce(record_of(identity, now_s=time.time(), **(certificate | changes)), [TARGET])


async def found_by(node: HivemindTransport) -> set[str]:
    return {record.peer_id for record in await directory_of(node)[1].find(Role.DRAFTER, TARGET)}


def membership_of(transport: HivemindTransport) -> Membership:
    membership = transport.config.gate.membership
    assert membership is not None
    return membership


@in_nodes
async def test_members_store_and_find_and_a_record_without_its_owners_certificate_is_kept_by_nobody(
    nodes: Nodes,
) -> None:
    first, second = await nodes.node(), await nodes.node()
    client = await nodes.node(client_mode=True)
    for certificate in (None, b"junk", nodes.swarm.admit(first.peer_id)):
        with pytest.raises(LocalProtocolError, match="no node would store our record"):
            await announce(second, certificate=certificate)
    for node in (first, second):
        await announce(node)
    assert await found_by(client) == {first.peer_id, second.peer_id}
    membership_of(client).take_revocations(nodes.swarm.revoke(second.peer_id))
    assert await found_by(client) == {first.peer_id}


@in_nodes
async def test_a_stranger_gets_nothing_from_any_call_of_the_dht(nodes: Nodes) -> None:
    from cosine_p2p.transport.full.library import DHTID, PeerID, dht_pb2

    member = await nodes.node()
    await announce(member)
    stranger = await nodes.made.stranger(joins=False)
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
    assert not dht_of(member).protocol.routing_table.uid_to_peer_id
