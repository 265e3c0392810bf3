"""Whom to ask: pure decisions over records."""

import random
from typing import Any

import pytest

from cosine_p2p.selection import pick_drafters, rank_verifiers
from cosine_protocol.records import NodeRecord
from tests.cosine_p2p.samples import identity_of, record_of

PEERS = [identity_of(number) for number in range(20)]
DIGEST = b"\x02" * 32


def record(number: int, **changes: Any) -> NodeRecord:
    return record_of(PEERS[number], now_s=0.0, **changes)


def test_the_least_loaded_verifier_comes_first_then_the_fastest() -> None:
    busy = record(0, load_requests=3, pass_us=1)
    slow = record(1, pass_us=900)
    fast = record(2, pass_us=100)
    assert rank_verifiers([busy, slow, fast]) == (fast, slow, busy)


def test_load_is_a_share_of_capacity() -> None:
    small = record(0, load_requests=2, capacity_requests=2)
    large = record(1, load_requests=4, capacity_requests=64)
    assert rank_verifiers([small, large]) == (large, small)


def test_all_verifiers_of_a_request_have_the_numerics_of_the_first() -> None:
    first, other, second = record(0, pass_us=1), record(1, pass_us=2, numerics="bfloat16"), record(2, pass_us=3)
    assert rank_verifiers([second, other, first]) == (first, second)
    assert rank_verifiers([second, other, first], numerics="bfloat16") == (other,)
    assert rank_verifiers([second, first], numerics="int4") == ()


def test_only_those_asked_for_and_trusted_may_serve() -> None:
    records = [record(number) for number in range(3)]
    assert rank_verifiers(records, only=PEERS[1].peer_id) == (records[1],)
    assert rank_verifiers(records, trust=(PEERS[2].peer_id,)) == (records[2],)
    assert rank_verifiers(records, only=PEERS[1].peer_id, trust=(PEERS[2].peer_id,)) == ()


def test_drafters_differ_in_expertise_before_any_repeats() -> None:
    code = [record(number, expertise=("code",), pass_us=number + 1) for number in range(3)]
    maths = record(3, expertise=("math",), pass_us=9)
    assert pick_drafters([*code, maths], tokenizer_digest=DIGEST, limit=3) == (code[0], maths, code[1])


def test_drafters_of_another_tokenizer_or_without_trust_are_left_out() -> None:
    ours, other = record(0), record(1, tokenizer_digest=b"\x03" * 32)
    assert pick_drafters([ours, other], tokenizer_digest=DIGEST, limit=4) == (ours,)
    assert pick_drafters([ours, other], tokenizer_digest=DIGEST, limit=4, trust=("nobody",)) == ()


@pytest.mark.parametrize("seed", range(40))
def test_choices_do_not_depend_on_the_order_of_records(seed: int) -> None:
    rng = random.Random(seed)
    records = [
        record(
            number,
            expertise=tuple(rng.sample(["code", "math", "law"], rng.randrange(3))),
            load_requests=rng.randrange(5),
            pass_us=rng.randrange(3),
            numerics=rng.choice(["float32", "bfloat16"]),
        )
        for number in range(len(PEERS))
    ]
    shuffled = rng.sample(records, len(records))
    limit = rng.randrange(8)
    chosen = pick_drafters(records, tokenizer_digest=DIGEST, limit=limit)
    assert chosen == pick_drafters(shuffled, tokenizer_digest=DIGEST, limit=limit), f"seed {seed}"
    assert len(chosen) == limit, f"seed {seed}"
    assert rank_verifiers(records) == rank_verifiers(shuffled), f"seed {seed}"
