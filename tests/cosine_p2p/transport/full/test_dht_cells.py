"""Cells in a DHT of nodes in memory: what is stored at others, what is found, and what liars among them can do."""

import time
from collections.abc import Collection
from functools import partial
from types import SimpleNamespace
from typing import Any

from cosine_p2p.directory.postings import Posting, PostingChecker, RecordOpener, RecordStore, dht_key, subkey_bytes
from cosine_p2p.transport.full.dht_cells import MAX_RECORDS_READ, DhtCells
from cosine_p2p.transport.full.dht_node import node_id_of
from cosine_p2p.transport.full.library import (
    DHTNode,
    DictionaryDHTValue,
    PeerID,
    RoutingTable,
    ValueWithExpiration,
)
from cosine_protocol import limits
from cosine_protocol.records import Role, cell_name, seal_record
from tests.cosine_p2p.samples import NETWORK, TARGET, identity_of, record_of
from tests.scenes import in_virtual_time

ROOT = cell_name(network=NETWORK, role=Role.DRAFTER, target=TARGET, prefix="")
OPENER = RecordOpener()


class Blacklist(set[Any]):
    """As hivemind's, but nobody's time ever comes to its end."""

    register_failure = set.add
    register_success = set.discard


def sealed(
    number: int, *, cell: str = ROOT, sequence: int = 1, lifetime_s: float = 300.0
) -> tuple[str, bytes, float]:
    """Owner, data and expiry of a record in a cell."""
    identity = identity_of(number)
    record = record_of(identity, now_s=time.time(), sequence=sequence, lifetime_s=lifetime_s)
    return identity.peer_id, seal_record(record, identity, key=cell), record.expires_at_s


class Node:
    """An honest node that keeps and shows what passes its check; `is_silent`, it answers nothing."""

    def __init__(self, number: int) -> None:
        self.peer_id = PeerID.from_base58(identity_of(number).peer_id)
        self.node_id = node_id_of(self.peer_id)
        self.store = RecordStore()
        self.checker = PostingChecker(NETWORK, OPENER)
        self.table = RoutingTable(self.node_id, 20, 5)
        self.is_silent = False
        self.finds: list[int] = []
        self.stores = 0

    def take(self, key: bytes, owner: str, value: bytes, expires_at_s: float) -> bool:
        now_s = time.time()
        posting = self.checker.check(
            key=key, subkey=subkey_bytes(owner), value=value, expires_at_s=expires_at_s, now_s=now_s
        )
        return self.store.put(key, posting, now_s)

    def postings(self, key: bytes) -> list[Posting]:
        return self.store.get(key, time.time())

    def shown(self, key: Any) -> Any:
        cell = DictionaryDHTValue()
        for posting in self.postings(key.to_bytes()):
            cell.store(posting.owner, posting.value, posting.expires_at_s)
        return ValueWithExpiration(cell, cell.latest_expiration_time) if cell.data else None


class Crowding(Node):
    """Shows a full cell of records that nobody else has, each forged, beside nothing true."""

    def shown(self, key: Any) -> Any:
        cell = DictionaryDHTValue()
        for number in range(limits.MAX_CELL_OWNERS):
            cell.store(f"{self.peer_id} {number}", b"junk", time.time() + 100)
        return ValueWithExpiration(cell, cell.latest_expiration_time)


class Dht:
    """Nodes that all know each other, and the cells as others read and write them."""

    def __init__(self, *nodes: Node) -> None:
        self.nodes = {node.peer_id: node for node in nodes}
        for node in nodes:
            for other in nodes:
                if other is not node:
                    node.table.add_or_update_node(other.node_id, other.peer_id)

    def cells(
        self,
        node: Node,
        *,
        anchors: Collection[Any] = (),
        client_mode: bool = False,
        store: RecordStore | None = None,
    ) -> DhtCells:
        """The cells as `node` of this network sees them."""

        async def call_find(peer_id: Any, keys: Collection[Any]) -> Any:
            other = self.nodes.get(peer_id)
            if other is None or other.is_silent:
                return None
            other.finds.append(len(keys))
            return {key: (other.shown(key), dict(other.table.get_nearest_neighbors(key, 20))) for key in keys}

        async def call_store(peer_id: Any, *, keys: Any, values: Any, expiration_time: Any, subkeys: Any) -> Any:
            other = self.nodes.get(peer_id)
            if other is None or other.is_silent:
                return None
            other.stores += 1
            (key,), (owner,), (value,), (expires_at_s,) = keys, subkeys, values, expiration_time
            return [other.take(key.to_bytes(), owner, value, expires_at_s)]

        protocol = SimpleNamespace(
            routing_table=node.table,
            bucket_size=20,
            client_mode=client_mode,
            call_find=call_find,
            call_store=call_store,
        )
        running = SimpleNamespace(
            protocol=protocol,
            node_id=node.node_id,
            peer_id=node.peer_id,
            blacklist=Blacklist(),
        )
        running._filter_blacklisted = partial(DHTNode._filter_blacklisted, running)
        running._call_find_with_blacklist = partial(DHTNode._call_find_with_blacklist, running)
        return DhtCells(running, checker=node.checker, store=node.store, anchors=anchors)


def network(count: int, *others: Node) -> tuple[Dht, list[Node]]:
    nodes = [Node(number) for number in range(1, count + 1)]
    return Dht(*nodes, *others), nodes


@in_virtual_time
async def test_a_record_is_stored_when_most_of_the_nodes_asked_show_it() -> None:
    dht, nodes = network(30)
    owner, data, expires_at_s = sealed(1)
    placement = await dht.cells(nodes[0]).write(ROOT, owner, data, expires_at_s)
    others = [node for node in nodes[1:] if node.postings(dht_key(ROOT))]
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
    """Twenty of them show 1,280 records; what several nodes show is looked at first."""
    liars = [Crowding(number) for number in range(100, 120)]
    dht, nodes = network(10, *liars)
    owner, data, expires_at_s = sealed(1)
    await dht.cells(nodes[0]).write(ROOT, owner, data, expires_at_s)
    assert len(liars) * limits.MAX_CELL_OWNERS > MAX_RECORDS_READ
    assert await dht.cells(nodes[9], client_mode=True).read([ROOT]) == {ROOT: {owner: data}}
