"""What a DHT node does for others, asked in memory by owners, readers and floods, in virtual time."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import cache
from types import SimpleNamespace
from typing import Any

import pytest

from cosine_p2p.directory.postings import (
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
from cosine_protocol import limits
from cosine_protocol.codec import encode_body
from cosine_protocol.identity import Identity
from cosine_protocol.records import Role, cell_name, seal_record
from tests.cosine_p2p.samples import NETWORK, TARGET, identity_of, record_of
from tests.scenes import in_virtual_time

ROOT = cell_name(network=NETWORK, role=Role.DRAFTER, target=TARGET, prefix="")
CHECK_S = 115e-6
"""The check of a signature (measured)."""
FIND_S = 1e-3
"""Looking into a cell and answering: a guess above what it takes, of which only proportions count here."""


class CountingChecker(PostingChecker):
    """Each check takes its time of the one processor that there is."""

    def __init__(self, processor: "Processor") -> None:
        super().__init__(NETWORK, RecordOpener())
        self.checks = 0
        self._processor = processor

    def check(self, **what: Any) -> Posting:
        self.checks += 1
        self._processor.busy_s += CHECK_S
        return super().check(**what)


class Processor:
    """Work is done in the order in which it comes; `busy_s` is what was added since somebody waited last."""

    def __init__(self) -> None:
        self.busy_s = 0.0
        self._free_at_s = 0.0

    async def wait(self) -> None:
        now_s = asyncio.get_running_loop().time()
        self._free_at_s = max(self._free_at_s, now_s) + self.busy_s
        self.busy_s = 0.0
        await asyncio.sleep(self._free_at_s - now_s)


class Protocol:
    """hivemind's protocol as far as it is called."""

    node_info = dht_pb2.NodeInfo()

    def __init__(self, processor: Processor) -> None:
        self.keys = 0
        self._processor = processor

    async def rpc_ping(self, request: Any, context: Any) -> Any:
        return dht_pb2.PingResponse()

    async def rpc_find(self, request: Any, context: Any) -> Any:
        self.keys += len(request.keys)
        self._processor.busy_s += FIND_S * len(request.keys)
        return dht_pb2.FindResponse()


class Service:
    """A node's service, and peers that call it."""

    def __init__(self, addresses: Mapping[str, str] | None = None) -> None:
        self.processor = Processor()
        self.checker = CountingChecker(self.processor)
        self.protocol = Protocol(self.processor)
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
        """Store cells, owners and values."""
        request = dht_pb2.StoreRequest(
            keys=[dht_key(cell) for cell, _, _ in items],
            subkeys=[subkey_bytes(owner) for _, owner, _ in items],
            values=[value for _, _, value in items],
            expiration_time=[time.time() + 200] * len(items),
            in_cache=[in_cache] * len(items),
        )
        response = await self.service.rpc_store(request, caller(sender))
        await self.processor.wait()
        return list(response.store_ok)

    async def look_up(self, sender: Identity, keys: int = 1) -> float:
        """Ask for keys; the seconds until the answer."""
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        await self.service.rpc_find(question(keys), caller(sender))
        await self.processor.wait()
        return loop.time() - began_s

    async def _connected(self) -> Mapping[str, str]:
        self.looked += 1
        return self._addresses

    async def _hang_up(self, peer_id: str) -> None:
        self.hung_up.append(peer_id)


@cache
def question(keys: int) -> Any:
    return dht_pb2.FindRequest(keys=[number.to_bytes(20) for number in range(keys)])


def caller(sender: Identity) -> Any:
    return SimpleNamespace(remote_id=PeerID.from_base58(sender.peer_id))


def item(
    signer: Identity, *, cell: str = ROOT, owner: Identity | None = None, age_s: float = 0.0, **changes: Any
) -> tuple[str, str, bytes]:
    owner = owner or signer
    record = record_of(owner, now_s=time.time() - age_s, **changes)
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
    """12,400 targets, as fast as it can."""
    node = Service()
    refused = 0
    targets = [f"invented/{number}" for number in range(200)]
    cells = [cell_name(network=NETWORK, role=Role.DRAFTER, target=target, prefix="") for target in targets]
    items = [item(OWNER, cell=cell, target=target) for cell, target in zip(cells, targets, strict=True)]
    # What comes after these is refused without a look.
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


async def slowest_beside(flood: Callable[[Service, int], Awaitable[object]] | None) -> tuple[float, Service]:
    """The slowest of an honest peer's look-ups, one a second for ten, beside 1,000 calls a second of another."""
    node = Service()

    async def call(number: int) -> None:
        assert flood is not None
        try:
            await flood(node, number)
        except OverBudget:
            return

    async def flooding() -> None:
        for number in range(10_000):
            calls.add(task := asyncio.ensure_future(call(number)))
            task.add_done_callback(calls.discard)
            await asyncio.sleep(0.001)

    calls: set[asyncio.Future[None]] = set()
    attack = asyncio.ensure_future(flooding()) if flood is not None else None
    waited_s = []
    for _ in range(9):
        await asyncio.sleep(1.0)
        waited_s.append(await node.look_up(OTHER, keys=4))
    if attack is not None:
        attack.cancel()
        await asyncio.gather(attack, *calls, return_exceptions=True)
    return max(waited_s), node


BAD = (ROOT, OWNER.peer_id, encode_body(StoredValue(ROOT, b"junk")))


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("flood", "most_work"),
    [
        (lambda node, number: node.bring(OWNER, BAD), 5),
        (lambda node, number: node.look_up(OWNER, keys=limits.MAX_FIND_KEYS), 110),
        (lambda node, number: node.look_up(OWNER, keys=8000), 0),
    ],
)
@in_virtual_time
async def test_honest_look_ups_take_less_than_twice_as_long_beside_a_flood(
    flood: Callable[[Service, int], Awaitable[object]], most_work: int
) -> None:
    """In the processor time of the node: bad signatures, full questions, questions of 8,000 keys."""
    quiet_s, _ = await slowest_beside(None)
    busy_s, node = await slowest_beside(flood)
    assert busy_s < 2 * quiet_s
    assert node.checker.checks + node.protocol.keys - 4 * 9 <= most_work
    assert OWNER.peer_id in node.hung_up


@pytest.mark.parametrize(
    ("ages_s", "sentence"),
    [
        ((0.0, 0.0, 0.0), ""),
        ((-25.0, -25.0, -25.0), ""),
        ((400.0, 400.0, 400.0), "at least 6 min ahead of"),
        ((-90.0, -90.0, -90.0), "s behind those of 2 peers"),
        # The median of the owners counts.
        ((1.0, 0.0, -1000.0, -1000.0, 1.0), ""),
    ],
)
@in_virtual_time
async def test_a_node_whose_clock_is_off_says_so_once_by_the_records_that_owners_bring(
    ages_s: Sequence[float], sentence: str, caplog: pytest.LogCaptureFixture
) -> None:
    owners = [identity_of(number) for number in range(3, 3 + len(ages_s))]
    node = Service()
    for _ in range(3):
        for owner, age_s in zip(owners, ages_s, strict=True):
            await node.bring(owner, item(owner, age_s=age_s))
            # In another's name, or no record at all, it tells nothing.
            await node.bring(owner, item(OTHER, age_s=1e6), (ROOT, owner.peer_id, b"?"))
        await asyncio.sleep(60.0)
    told = [record.getMessage() for record in caplog.records if "clock" in record.getMessage()]
    # The first owner comes alone: its clock or this one may be wrong.
    assert len(told) == 2 * bool(sentence)
    assert not told or ("only peer" in told[0] and sentence in told[1])
