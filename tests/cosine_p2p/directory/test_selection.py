"""The choice of nodes to ask, by records."""

import random
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

import pytest

from cosine_p2p.directory.selection import (
    EXPLORE_EVERY,
    Experience,
    pick_drafters,
    rank_verifiers,
)
from cosine_protocol.records import NodeRecord
from tests.cosine_p2p.samples import identity_of, record_of

PEERS = [identity_of(number) for number in range(20)]
DIGEST = b"\x02" * 32


def record(number: int, **changes: Any) -> NodeRecord:
    return record_of(PEERS[number], now_s=0.0, **changes)


def ranked(
    records: Iterable[NodeRecord],
    *,
    seed: int = 0,
    only: str | None = None,
    trust: Sequence[str] = (),
    **experience: Any,
) -> tuple[NodeRecord, ...]:
    chance = random.Random(seed).random
    return rank_verifiers(records, Experience(**experience), chance=chance, only=only, trust=trust)


def picked(records: Iterable[NodeRecord], *, limit: int, seed: int = 0, **options: Any) -> tuple[NodeRecord, ...]:
    chance = random.Random(seed).random
    return pick_drafters(records, tokenizer_digest=DIGEST, limit=limit, chance=chance, **options)


def test_the_fastest_verifier_under_its_load_comes_first_and_a_full_one_last() -> None:
    full = record(0, load_requests=4, pass_us=1)
    slow = record(1, pass_us=900)
    busy = record(2, load_requests=3, pass_us=300)
    fast = record(3, pass_us=100)
    assert ranked([full, slow, busy, fast]) == (fast, busy, slow, full)
    closed = record(0, capacity_requests=0, pass_us=0)
    assert ranked([closed, slow]) == (slow, closed)
    small = record(0, load_requests=2, capacity_requests=2)
    large = record(1, load_requests=4, capacity_requests=64)
    assert ranked([small, large]) == (large, small), "load is a share of capacity"


@pytest.mark.parametrize("choose", [ranked, partial(picked, limit=1)])
def test_clients_that_choose_at_once_from_the_same_records_spread(choose: Callable[..., Any]) -> None:
    nodes = [record(number, pass_us=60_000, capacity_requests=16) for number in range(len(PEERS))]
    load = Counter(choose(nodes, seed=seed)[0].peer_id for seed in range(5 * len(PEERS)))
    assert max(load.values()) < 16


def test_a_pass_that_was_never_measured_counts_as_no_faster_than_the_median() -> None:
    """The median of the measured passes, or of the announced ones if none was measured."""
    liar, fast, usual, slow = (record(number, pass_us=us) for number, us in enumerate((1, 10_000, 60_000, 90_000)))
    measured = {fast.peer_id: 0.01, usual.peer_id: 0.06, slow.peer_id: 0.09}
    orders = [ranked([liar, fast, usual, slow], seed=seed, passes_s=measured) for seed in range(200)]
    explored = sum(order[0] is liar for order in orders)
    assert 0 < explored < 2 * len(orders) / EXPLORE_EVERY
    assert {order for order in orders if order[0] is not liar} == {(fast, usual, liar, slow)}
    firsts = {ranked([liar, fast, usual, slow], seed=seed)[0] for seed in range(50)}
    assert firsts == {liar, fast}


def test_an_absurd_pass_or_load_costs_its_own_place_only() -> None:
    honest = [record(number, pass_us=60_000) for number in range(3)]
    absurd = [
        record(3, pass_us=3_600_000_000),
        record(4, load_requests=1 << 20, capacity_requests=1),
        record(5, load_requests=0, capacity_requests=0),
    ]
    for measured in ({}, {honest[0].peer_id: 0.06}):
        assert set(ranked([*absurd, *honest], passes_s=measured)[:3]) == set(honest)


def test_only_named_and_trusted_verifiers_may_serve_and_failed_ones_come_last() -> None:
    records = [record(number, pass_us=10**number) for number in range(3)]
    assert ranked(records, only=PEERS[1].peer_id) == (records[1],)
    assert ranked(records, trust=(PEERS[2].peer_id,)) == (records[2],)
    assert ranked(records, only=PEERS[1].peer_id, trust=(PEERS[2].peer_id,)) == ()
    assert ranked(records, avoided={PEERS[0].peer_id})[-1] == records[0]


def test_trusted_drafters_of_the_tokenizer_differ_in_expertise_before_any_repeats() -> None:
    code = [record(number, expertise=("code",), pass_us=2**number) for number in range(3)]
    maths, other = record(3, expertise=("math",), pass_us=9), record(4, tokenizer_digest=b"\x03" * 32)
    assert picked([*code, maths, other], limit=3) == (code[0], maths, code[1])
    assert picked([*code, other], limit=4, trust=(PEERS[2].peer_id,)) == (code[2],)
