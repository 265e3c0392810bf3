"""Cells in a DHT of nodes in memory: stored records, look-ups, and lying nodes."""

import time
from collections.abc import Collection
from types import SimpleNamespace
from typing import Any

from cosine_p2p.dht.postings import PostingChecker, RecordOpener, RecordStore, dht_key, subkey_bytes
from cosine_p2p.transport.full.dht_cells import MAX_RECORDS_READ, DhtCells
from cosine_p2p.transport.full.dht_node import ShownStorage, node_id_of
from cosine_p2p.transport.full.library import DictionaryDHTValue, PeerID, RoutingTable, ValueWithExpiration
from cosine_protocol.discover import MAX_CELL_OWNERS
from cosine_protocol.records import Role, cell_name, seal_record
from tests.cosine_p2p.samples import NETWORK, TARGET, identity_of, record_of
from tests.scenes import in_virtual_time

ROOT = cell_name(network=NETWORK, role=Role.DRAFTER, target=TARGET, prefix="")
OPENER = RecordOpener()


def sealed(number: int, *, sequence: int = 1, lifetime_s: float = 300.0) -> tuple[str, bytes, float]:
    identity = identity_of(number)
    record = record_of(identity, now_s=time.time(), sequence=sequence, lifetime_s=lifetime_s)
    return identity.peer_id, seal_record(record, identity, key=ROOT), record.expires_at_s


class Node:
    def __init__(self, number: int) -> None:
        self.peer_id = PeerID.from_base58(identity_of(number).peer_id)
        self.node_id = node_id_of(self.peer_id)
        self.store = RecordStore()
        self.checker = PostingChecker(NETWORK, OPENER)
        self.table = RoutingTable(self.node_id, 20, 5)

    def shown(self, key: Any) -> Any:
        return ShownStorage(self.store).get(key)


class Crowding(Node):
    """Shows a full cell of forged records, different from those of other nodes."""

    def shown(self, key: Any) -> Any:
        cell = DictionaryDHTValue()
        for number in range(MAX_CELL_OWNERS):
            cell.store(f"{self.peer_id} {number}", b"junk", time.time() + 100)
        return ValueWithExpiration(cell, cell.latest_expiration_time)


class Dht:
    def __init__(self, *nodes: Node) -> None:
        self.nodes = {node.peer_id: node for node in nodes}
        for node in nodes:
            for other in nodes:
                if other is not node:
                    node.table.add_or_update_node(other.node_id, other.peer_id)

    def cells(self, node: Node, *, client_mode: bool = False) -> DhtCells:
        async def call_find(peer_id: Any, keys: Collection[Any]) -> Any:
            other = self.nodes[peer_id]
            return {key: (other.shown(key), dict(other.table.get_nearest_neighbors(key, 20))) for key in keys}

        async def call_store(peer_id: Any, *, keys: Any, values: Any, expiration_time: Any, subkeys: Any) -> Any:
            other, now_s, (key, owner) = self.nodes[peer_id], time.time(), (keys[0].to_bytes(), subkeys[0])
            posting = other.checker.check(
                key=key,
                subkey=subkey_bytes(owner),
                value=values[0],
                expires_at_s=expiration_time[0],
                now_s=now_s,
            )
            return [other.store.put(key, posting, now_s)]

        running: Any = SimpleNamespace(
            node_id=node.node_id,
            p2p=SimpleNamespace(peer_id=node.peer_id),
            routing_table=node.table,
            client_mode=client_mode,
            call_find=call_find,
            find_at=call_find,
            call_store=call_store,
        )
        return DhtCells(running, checker=node.checker, store=node.store, anchors=())


def network(count: int, *others: Node) -> tuple[Dht, list[Node]]:
    nodes = [Node(number) for number in range(1, count + 1)]
    return Dht(*nodes, *others), nodes


@in_virtual_time
async def test_a_record_is_stored_when_most_of_the_nodes_asked_show_it() -> None:
    dht, nodes = network(30)
    owner, data, expires_at_s = sealed(1)
    placement = await dht.cells(nodes[0]).write(ROOT, owner, data, expires_at_s)
    others = [node for node in nodes[1:] if node.store.get(dht_key(ROOT), time.time())]
    assert placement.holders == placement.asked == len(others)
    assert 10 <= len(others) <= 15
    assert placement.is_enough
    assert await dht.cells(nodes[29]).read([ROOT]) == {ROOT: {owner: data}}


@in_virtual_time
async def test_of_one_owner_the_newest_record_counts_even_where_an_older_one_lives_longer() -> None:
    dht, nodes = network(3)
    old, new = sealed(9, sequence=1), sealed(9, sequence=2, lifetime_s=100.0)
    for node, (owner, data, expires_at_s) in zip(nodes, (old, new), strict=False):
        writer = Dht(node).cells(node)
        await writer.write(ROOT, owner, data, expires_at_s)
    assert await dht.cells(nodes[2]).read([ROOT]) == {ROOT: {new[0]: new[1]}}


@in_virtual_time
async def test_nodes_that_show_cells_full_of_junk_hide_nothing() -> None:
    """Twenty of them show 1,280 records; records that several nodes show are checked first."""
    liars = [Crowding(number) for number in range(100, 120)]
    dht, nodes = network(10, *liars)
    owner, data, expires_at_s = sealed(1)
    await dht.cells(nodes[0]).write(ROOT, owner, data, expires_at_s)
    assert len(liars) * MAX_CELL_OWNERS > MAX_RECORDS_READ
    assert await dht.cells(nodes[9], client_mode=True).read([ROOT]) == {ROOT: {owner: data}}
