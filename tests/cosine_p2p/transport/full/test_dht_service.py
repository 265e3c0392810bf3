"""A DHT node's service for owners, readers and flooding peers, in memory and virtual time."""

import asyncio
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from types import SimpleNamespace
from typing import Any

from cosine_p2p.dht.postings import (
    MAX_OWNER_CELLS,
    MAX_RANGE_OWNERS,
    Posting,
    PostingChecker,
    RecordOpener,
    RecordStore,
    StoredValue,
    dht_key,
    subkey_bytes,
)
from cosine_p2p.transport.full.dht_service import DhtService, OverBudget
from cosine_p2p.transport.full.library import PeerID, dht_pb2
from cosine_protocol.discover import MAX_FIND_KEYS
from cosine_protocol.fields import encode_body
from cosine_protocol.identity import Identity
from cosine_protocol.records import Role, cell_name, seal_record
from tests.cosine_p2p.samples import NETWORK, TARGET, identity_of, record_of
from tests.scenes import in_virtual_time

ROOT = cell_name(network=NETWORK, role=Role.DRAFTER, target=TARGET, prefix="")


class CountingChecker(PostingChecker):
    checks = 0

    def check(self, **what: Any) -> Posting:
        self.checks += 1
        return super().check(**what)


class Protocol:
    node_info = dht_pb2.NodeInfo()
    keys = 0

    async def rpc_find(self, request: Any, context: Any) -> Any:
        self.keys += len(request.keys)
        return dht_pb2.FindResponse()


class Service:
    def __init__(self, addresses: Mapping[str, str] | None = None) -> None:
        self.checker = CountingChecker(NETWORK, RecordOpener())
        self.protocol = Protocol()
        self.store = RecordStore()
        self.hung_up: list[str] = []
        self.looked = 0
        self._addresses = addresses or {}
        self.service = DhtService(
            self.protocol,
            checker=self.checker,
            store=self.store,
            addresses=self._connected,
            hang_up=self._hang_up,
        )

    async def bring(
        self, sender: Identity, *items: tuple[str, str, bytes], in_cache: bool = False
    ) -> Sequence[bool]:
        request = dht_pb2.StoreRequest(
            keys=[dht_key(cell) for cell, _, _ in items],
            subkeys=[subkey_bytes(owner) for _, owner, _ in items],
            values=[value for _, _, value in items],
            expiration_time=[time.time() + 200] * len(items),
            in_cache=[in_cache] * len(items),
        )
        response = await self.service.rpc_store(request, caller(sender))
        return list(response.store_ok)

    async def _connected(self) -> Mapping[str, str]:
        self.looked += 1
        return self._addresses

    async def _hang_up(self, peer_id: str) -> None:
        self.hung_up.append(peer_id)


def caller(sender: Identity) -> Any:
    return SimpleNamespace(remote_id=PeerID.from_base58(sender.peer_id))


def item(
    signer: Identity, *, cell: str = ROOT, owner: Identity | None = None, **changes: Any
) -> tuple[str, str, bytes]:
    owner = owner or signer
    record = record_of(owner, now_s=time.time(), **changes)
    return cell, owner.peer_id, encode_body(StoredValue(cell, seal_record(record, signer, key=cell)))


OWNER, OTHER = identity_of(1), identity_of(2)


@in_virtual_time
async def test_a_node_keeps_what_its_owner_brings_and_nothing_of_others() -> None:
    node = Service()
    assert await node.bring(OWNER, item(OWNER)) == [True]
    assert await node.bring(OWNER, item(OTHER), item(OTHER, owner=OWNER)) == [False, False]
    assert await node.bring(OTHER, item(OTHER), in_cache=True) == [False]
    assert [posting.owner for posting in node.store.get(dht_key(ROOT), time.time())] == [OWNER.peer_id]


@in_virtual_time
async def test_one_identity_with_invented_targets_costs_eight_places_and_then_its_voice() -> None:
    """12,400 stores without a pause."""
    node = Service()
    refused = 0
    targets = [f"invented/{number}" for number in range(200)]
    cells = [cell_name(network=NETWORK, role=Role.DRAFTER, target=target, prefix="") for target in targets]
    items = [item(OWNER, cell=cell, target=target) for cell, target in zip(cells, targets, strict=True)]
    # Later stores are refused without a check.
    for number in range(12_400):
        try:
            await node.bring(OWNER, items[min(number, 199)])
        except OverBudget:
            refused += 1
    await asyncio.sleep(0)
    assert len(node.store._cells) == MAX_OWNER_CELLS
    assert node.store._bytes < 64 << 10
    assert node.hung_up == [OWNER.peer_id]
    assert node.checker.checks <= 110
    assert refused >= 12_290


@in_virtual_time
async def test_a_flood_of_bad_signatures_or_of_questions_costs_little_and_then_its_peer_its_voice() -> None:
    bad = (ROOT, OWNER.peer_id, encode_body(StoredValue(ROOT, b"junk")))
    for keys, most_work in ((0, 5), (MAX_FIND_KEYS, 110), (8000, 0)):
        node = Service()
        question = dht_pb2.FindRequest(keys=[number.to_bytes(20) for number in range(keys)])
        for _ in range(200):
            with suppress(OverBudget):
                await (node.service.rpc_find(question, caller(OWNER)) if keys else node.bring(OWNER, bad))
        await asyncio.sleep(0)
        assert node.checker.checks + node.protocol.keys <= most_work
        assert node.hung_up == [OWNER.peer_id]
        assert await node.bring(OTHER, item(OTHER)) == [True]


@in_virtual_time
async def test_a_thousand_identities_of_one_address_range_take_half_a_cell() -> None:
    sybils = [identity_of(number) for number in range(10, 714)]
    at = {sybil.peer_id: f"/ip4/93.184.216.{number % 250}/tcp/1" for number, sybil in enumerate(sybils)}
    node = Service(at | {OWNER.peer_id: "/ip4/8.8.8.8/tcp/1"})
    stored = 0
    for sybil in sybils:
        try:
            stored += sum(await node.bring(sybil, item(sybil)))
        except OverBudget:
            continue
    assert stored == MAX_RANGE_OWNERS
    assert await node.bring(OWNER, item(OWNER)) == [True]
    assert node.looked == 1
