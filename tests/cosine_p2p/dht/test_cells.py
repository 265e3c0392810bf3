"""The records that the DHT accepts and keeps, and a directory's way through cells."""

import asyncio
import random
from collections.abc import Mapping, Sequence

import pytest

from cosine_lab.emulation.memory_directory import MemoryCells
from cosine_p2p.dht.cells import DhtDirectory, FindMemory, Placement, SealedRecord
from cosine_p2p.dht.postings import (
    ENTRY_BYTES,
    Posting,
    PostingChecker,
    RecordOpener,
    RecordStore,
    StoredValue,
    dht_key,
    subkey_bytes,
)
from cosine_protocol.discover import MAX_CELL_OWNERS
from cosine_protocol.errors import LocalProtocolError, PeerLost, RemoteProtocolError
from cosine_protocol.fields import encode_body
from cosine_protocol.identity import Identity
from cosine_protocol.records import (
    ALL_TARGETS,
    MAX_RECORD_TTL_S,
    NodeRecord,
    Role,
    cell_key,
    cell_name,
    seal_record,
)
from tests.cosine_p2p.private_swarm import Clock
from tests.cosine_p2p.samples import NETWORK, TARGET, identity_of, record_of
from tests.scenes import in_real_time
from tests.thoroughness import soak_rest

NOW_S = 1_000_000.0


def cell_of(record: NodeRecord, *, name: str = TARGET, depth: int = 0, network: str = NETWORK) -> str:
    return cell_key(network=network, role=record.role, target=name, owner=record.peer_id, depth=depth)


def accepts(
    record: NodeRecord,
    signer: Identity,
    *,
    cell: str | None = None,
    key_cell: str | None = None,
    owner: str | None = None,
    expires_at_s: float | None = None,
) -> bool:
    cell = cell or cell_of(record)
    try:
        PostingChecker(NETWORK, RecordOpener()).check(
            key=dht_key(key_cell or cell),
            subkey=subkey_bytes(owner or record.peer_id),
            value=encode_body(StoredValue(cell, seal_record(record, signer, key=cell))),
            expires_at_s=record.expires_at_s if expires_at_s is None else expires_at_s,
            now_s=NOW_S,
        )
    except RemoteProtocolError:
        return False
    return True


OWNER, THIEF = identity_of(1), identity_of(2)
GOOD = record_of(OWNER, now_s=NOW_S)


def test_a_good_record_is_stored_and_only_the_owner_writes_under_its_name() -> None:
    for name in (TARGET, GOOD.target_digest.hex(), ALL_TARGETS):
        assert all(accepts(GOOD, OWNER, cell=cell_of(GOOD, name=name, depth=depth)) for depth in range(5))
    assert not accepts(GOOD, THIEF)
    assert not accepts(GOOD, OWNER, owner=THIEF.peer_id)
    assert not accepts(record_of(THIEF, now_s=NOW_S), OWNER, owner=OWNER.peer_id)


@pytest.mark.parametrize(
    "cell",
    [
        cell_of(GOOD, network="other"),
        cell_of(GOOD, name="another/model"),
        cell_of(GOOD, depth=5),
        cell_name(network=NETWORK, role="verifier", target=TARGET, prefix=""),
        cell_of(GOOD, depth=1)[:-1] + ("0" if cell_of(GOOD, depth=1)[-1] != "0" else "1"),
    ],
)
def test_a_record_stays_in_its_own_cells(cell: str) -> None:
    assert not accepts(GOOD, OWNER, cell=cell)
    assert not accepts(GOOD, OWNER, key_cell=cell_of(GOOD, depth=1))


def test_lifetimes_are_bounded() -> None:
    until_s = GOOD.expires_at_s
    assert accepts(GOOD, OWNER, expires_at_s=until_s - 1)
    for later_s in (until_s + 1, float("inf"), float("nan")):
        assert not accepts(GOOD, OWNER, expires_at_s=later_s)
    assert not accepts(record_of(OWNER, now_s=NOW_S + 30, lifetime_s=MAX_RECORD_TTL_S), OWNER)
    assert not accepts(record_of(OWNER, now_s=NOW_S - 400), OWNER)
    assert accepts(record_of(OWNER, now_s=NOW_S - 310), OWNER), "a record that has just lapsed"


def posting(number: int, *, sequence: int = 1, lifetime_s: float = 300.0, now_s: float = NOW_S) -> Posting:
    record = record_of(identity_of(number), now_s=now_s, sequence=sequence, lifetime_s=lifetime_s)
    data = b"%d/%d/%f" % (number, sequence, now_s)
    return Posting(record.peer_id, data, data, record, record.expires_at_s)


def test_in_a_full_cell_the_largest_range_gives_its_youngest_place_to_a_smaller_one() -> None:
    store = RecordStore()
    for number in range(1, 65):
        assert store.put(b"k", posting(number), NOW_S, source="one" if number <= 32 else "two")
    assert store.put(b"k", posting(65), NOW_S, source="three")
    owners = {held.owner for held in store.get(b"k", NOW_S)}
    assert len(owners) == 64
    # The youngest of the first range, not its oldest.
    assert posting(32).owner not in owners
    assert posting(1).owner in owners


def test_a_full_store_takes_from_the_range_that_has_most() -> None:
    store, cells = RecordStore(max_bytes=40 * (ENTRY_BYTES + 40)), [b"%d" % number for number in range(60)]
    flooding = [store.put(cells[number], posting(number), NOW_S, source="flooder") for number in range(1, 60)]
    assert 39 <= sum(flooding) <= 41
    assert all(store.put(b"honest", posting(number), NOW_S, source="honest") for number in range(60, 70))
    assert len(store.get(b"honest", NOW_S)) == 10
    assert sum(len(store.get(cell, NOW_S)) for cell in cells) <= 30
    later_s = NOW_S + 1000
    assert store.put(b"new", posting(50, now_s=later_s), later_s)
    assert store._bytes < 2 * (ENTRY_BYTES + 40), "lapsed records are removed"


def test_a_clock_that_is_set_back_keeps_no_lapsed_record_and_no_cell() -> None:
    store, clock = RecordStore(), Clock(NOW_S + 86_400.0)
    cells = FewHolders(clock)
    writer = directory(cells, 1, clock)
    for ahead_s in (86_400.0, 0.0):
        clock.now_s = NOW_S + ahead_s
        assert store.put(b"%f" % ahead_s, posting(1, now_s=clock()), clock())
        asyncio.run(writer.announce(record_of(OWNER, now_s=clock()), [TARGET]))
    assert [is_renewal for _, is_renewal in cells.written] == [False] * 4
    later_s = NOW_S + 1000
    assert store.put(b"new", posting(2, now_s=later_s), later_s)
    assert store._bytes < 3 * (ENTRY_BYTES + 40), "that of the day to come, and the new one"


@pytest.mark.parametrize("seed", soak_rest(range(20)))
def test_the_store_against_a_plain_model(seed: int) -> None:
    rng, store, now_s = random.Random(seed), RecordStore(), NOW_S
    said: dict[tuple[bytes, int], Posting] = {}
    for _ in range(400):
        now_s += rng.choice((0.0, 1.0, 20.0))
        key, number = rng.choice((b"a", b"b")), rng.randint(1, 90)
        new = posting(number, sequence=rng.randint(1, 9), lifetime_s=rng.choice((5.0, 300.0)), now_s=now_s)
        if store.put(key, new, now_s):
            before = said.get((key, number))
            if before is not None and before.expires_at_s >= now_s:
                assert new.record.sequence > before.record.sequence or new == before
            said[key, number] = new
        for cell in (b"a", b"b"):
            alive = {p.owner for (k, _), p in said.items() if k == cell and p.expires_at_s >= now_s}
            assert {held.owner for held in store.get(cell, now_s)} == alive
            assert len(alive) <= MAX_CELL_OWNERS


def directory(cells: MemoryCells, number: int, clock: Clock, *, opener: RecordOpener | None = None) -> DhtDirectory:
    return DhtDirectory(cells, identity_of(number), network=NETWORK, clock=clock, opener=opener)


@in_real_time
async def fill(cells: MemoryCells, clock: Clock, numbers: Sequence[int]) -> None:
    opener = RecordOpener()
    for number in numbers:
        record = record_of(identity_of(number), now_s=clock())
        await directory(cells, number, clock, opener=opener).announce(record, [TARGET])


def found(cells: MemoryCells, clock: Clock, target: str = TARGET) -> list[NodeRecord]:
    return asyncio.run(directory(cells, 0, clock).find(Role.DRAFTER, target))


def test_records_are_found_by_name_and_by_digest() -> None:
    clock = Clock(NOW_S)
    cells = MemoryCells(network=NETWORK, clock=clock)
    record = record_of(OWNER, now_s=NOW_S)
    names = [TARGET, record.target_digest.hex()]
    asyncio.run(directory(cells, 1, clock).announce(record, names))
    assert [found(cells, clock, name) for name in names] == [[record], [record]]
    assert found(cells, clock, ALL_TARGETS) == [record]
    assert found(cells, clock, "else") == []
    with pytest.raises(LocalProtocolError, match="else"):
        asyncio.run(directory(cells, 1, clock).announce(record, ["else"]))


def test_full_cells_split_everybody_is_found_and_a_sample_costs_little() -> None:
    clock = Clock(NOW_S)
    cells = LyingCells(clock)
    fill(cells, clock, range(1, 301))
    peer_ids = {identity_of(number).peer_id for number in range(1, 301)}
    assert {record.peer_id for record in found(cells, clock)} == peer_ids
    for digit in "0123456789abcdef":
        assert cells.store.get(
            dht_key(cell_name(network=NETWORK, role="drafter", target=TARGET, prefix=digit)), NOW_S
        )
    cells.reads = 0
    sample = asyncio.run(directory(cells, 0, clock).find(Role.DRAFTER, TARGET, wanted=20))
    assert 20 <= len(sample) < 100
    assert cells.reads <= 4


class LyingCells(MemoryCells):
    """Reads return planted records in addition to stored ones."""

    def __init__(self, clock: Clock) -> None:
        super().__init__(network=NETWORK, clock=clock)
        self.planted: dict[str, bytes] = {}
        self.reads = 0

    async def read(self, cells: Sequence[str]) -> Mapping[str, Mapping[str, bytes]]:
        self.reads += len(cells)
        honest = await super().read(cells)
        return {cell: {**records, **self.planted} for cell, records in honest.items()}


def test_bad_records_are_dropped_and_make_no_cell_full() -> None:
    clock = Clock(NOW_S)
    cells = LyingCells(clock)
    fill(cells, clock, [1])
    cell = cell_of(GOOD)
    cells.planted = {
        THIEF.peer_id: seal_record(GOOD, THIEF, key=cell),
        identity_of(3).peer_id: b"junk",
        "nobody": b"",
    }
    assert [record.peer_id for record in found(cells, clock)] == [OWNER.peer_id]
    cells.planted = {f"peer {number}": b"junk" for number in range(1000)}
    cells.reads = 0
    assert [record.peer_id for record in found(cells, clock)] == [OWNER.peer_id]
    assert cells.reads == 1


class FewHolders(MemoryCells):
    """`holders` of the five nodes that are asked hold the record."""

    def __init__(self, clock: Clock) -> None:
        super().__init__(network=NETWORK, clock=clock)
        self.holders = 5
        self.written: list[tuple[str, bool]] = []

    async def write(
        self, cell: str, owner: str, data: bytes, expires_at_s: float, *, is_renewal: bool = False
    ) -> Placement:
        self.written.append((cell, is_renewal))
        await super().write(cell, owner, data, expires_at_s)
        return Placement(holders=self.holders, asked=5)


@pytest.mark.parametrize(("holders", "is_stored"), [(3, True), (2, False)])
def test_a_record_is_announced_once_most_of_the_nodes_asked_hold_it(holders: int, is_stored: bool) -> None:
    clock = Clock(NOW_S)
    cells = FewHolders(clock)
    cells.holders = holders
    writer = directory(cells, 1, clock)
    if is_stored:
        asyncio.run(writer.announce(GOOD, [TARGET]))
    else:
        with pytest.raises(PeerLost, match=f"{holders} of the 5 nodes that should hold our record have it, 3 are"):
            asyncio.run(writer.announce(GOOD, [TARGET]))
    assert writer.holders == holders
    # Readers do not descend below a cell that is not full, so no other one is tried.
    assert cells.written == [(cell_of(GOOD), False), (cell_of(GOOD, name=ALL_TARGETS), False)]


def test_found_records_are_reported_with_their_signatures() -> None:
    clock, told = Clock(NOW_S), list[SealedRecord]()
    cells = MemoryCells(network=NETWORK, clock=clock)
    fill(cells, clock, [1, 2])
    memory = FindMemory(note_found=lambda *found: told.extend(found[2]))
    ours = DhtDirectory(cells, OWNER, network=NETWORK, clock=clock, memory=memory)
    found = asyncio.run(ours.find(Role.DRAFTER, TARGET))
    checker = PostingChecker(NETWORK, RecordOpener())
    assert found == [checker.open(one.data, cell=one.cell, owner=one.owner, now_s=clock()) for one in told]


def test_the_store_keeps_the_newest_of_each_owner_and_a_replay_undoes_no_goodbye() -> None:
    store = RecordStore()
    assert store.put(b"k", posting(1, sequence=5), NOW_S)
    assert store.put(b"k", posting(1, sequence=5), NOW_S)
    assert not store.put(b"k", posting(1, sequence=4, lifetime_s=600), NOW_S)
    assert store.put(b"k", posting(1, sequence=6, lifetime_s=1), NOW_S)
    assert [held.record.sequence for held in store.get(b"k", NOW_S)] == [6]
    later_s = NOW_S + 2
    assert not store.get(b"k", later_s)
    assert not store.put(b"k", posting(1, sequence=5), later_s)
    assert store.put(b"k", posting(2, now_s=later_s), later_s)
    assert len(store.get(b"k", later_s)) == 1
