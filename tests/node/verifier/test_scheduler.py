"""The schedule of a pass: decoding first, prompts in chunks beside it, no request forgotten."""

from collections import Counter
from random import Random

from hypothesis import given
from hypothesis import strategies as st

from cosine_node.engine.curve import LONGEST_PROMPT_PASS_S, PROMPT_TOKENS, CostCurve, rising
from cosine_node.engine.pool_size import PASS_TOKENS
from cosine_node.passes.fair_pass import CROWD
from cosine_node.verifier.scheduler import (
    MAX_BUDGET_TOKENS,
    MAX_CHUNK_TOKENS,
    MAX_WAIT_PASSES,
    MIN_BUDGET_TOKENS,
    MIN_CHUNK_TOKENS,
    STALL,
    ReadyRequest,
    most_tokens,
    pass_budget_tokens,
    pass_chunk_tokens,
    schedule_pass,
)

FLAT = CostCurve(((1, 0.06), (1024, 0.06)))
STEEP = CostCurve(((1, 0.01), (64, 0.64)))
HINGE = CostCurve(((1, 0.1), (32, 0.1), (64, 0.2)))


def decoding(waited: int = 0) -> ReadyRequest:
    return ReadyRequest(unfed_tokens=0, waited_passes=waited)


def prompt(tokens: int, waited: int = 0) -> ReadyRequest:
    return ReadyRequest(unfed_tokens=tokens, waited_passes=waited)


waitings = st.lists(
    st.builds(
        ReadyRequest,
        unfed_tokens=st.integers(0, 2000) | st.just(0),
        waited_passes=st.integers(0, 3 * MAX_WAIT_PASSES),
    ),
    max_size=40,
)


@given(waitings, st.sampled_from([FLAT, STEEP, HINGE]), st.integers(1, 64))
def test_a_pass_stays_within_the_budget_and_within_what_is_unfed(
    waiting: list[ReadyRequest], curve: CostCurve, budget_tokens: int
) -> None:
    schedule = schedule_pass(waiting, curve=curve, budget_tokens=budget_tokens)
    assert len(schedule.decoding) == min(budget_tokens, sum(not one.unfed_tokens for one in waiting))
    assert all(not waiting[index].unfed_tokens for index in schedule.decoding)
    assert all(0 < tokens <= waiting[index].unfed_tokens for index, tokens in schedule.chunks.items())
    assert bool(schedule.chunks) == any(one.unfed_tokens for one in waiting)
    if schedule.decoding and sum(schedule.chunks.values()) > MIN_CHUNK_TOKENS:
        assert curve.seconds(schedule.tokens) <= STALL * curve.seconds(len(schedule.decoding)) + 1e-9


@given(
    st.lists(st.integers(1, 20), min_size=2, max_size=6),
    st.sampled_from([FLAT, STEEP, HINGE]),
    st.randoms(use_true_random=False),
)
def test_each_client_has_its_share_of_a_pass_and_each_request_its_turn(
    counts: list[int], curve: CostCurve, random: Random
) -> None:
    """So a crowd's passes last little longer for a client of few requests, and where they are cheap all go."""
    clients = [str(number) for number, count in enumerate(counts) for _ in range(count)]
    random.shuffle(clients)
    waited, served = [0] * len(clients), Counter[int]()
    for _ in range(3 * max(counts)):
        ready = [
            ReadyRequest(client=client, unfed_tokens=0, waited_passes=passes)
            for client, passes in zip(clients, waited, strict=True)
        ]
        chosen = schedule_pass(ready, curve=curve, budget_tokens=len(clients)).decoding
        served.update(chosen)
        waited = [0 if index in chosen else passes + 1 for index, passes in enumerate(waited)]
        fewest = min(counts)
        shares = Counter(clients[index] for index in chosen)
        assert all(shares[client] >= fewest for client in shares) and len(shares) == len(counts)
        least_s = max(CROWD * curve.seconds(fewest), curve.seconds(fewest * len(counts)))
        assert curve.seconds(len(chosen)) <= least_s + 1e-9
        assert len(chosen) == len(clients) or curve is not FLAT
    assert len(served) == len(clients)


def test_one_client_alone_has_the_whole_pass() -> None:
    alone = [ReadyRequest(client="a", unfed_tokens=0)] * 16
    assert len(schedule_pass(alone, curve=STEEP, budget_tokens=16).decoding) == 16


@given(waitings, st.integers(1, 16))
def test_nobody_waits_for_longer_than_is_promised(waiting: list[ReadyRequest], budget_tokens: int) -> None:
    """Prompts without end, and no newcomers: the hardest case for those who came last."""
    endless = [ReadyRequest(unfed_tokens=10**9 if one.unfed_tokens else 0) for one in waiting]
    waited, longest = [0] * len(endless), 0
    promised = MAX_WAIT_PASSES + len(endless) * max(1, MIN_CHUNK_TOKENS // budget_tokens) + len(endless)
    for _ in range(2 * promised):
        present = [
            ReadyRequest(unfed_tokens=one.unfed_tokens, waited_passes=passes)
            for one, passes in zip(endless, waited, strict=True)
        ]
        schedule = schedule_pass(present, curve=STEEP, budget_tokens=budget_tokens)
        served = {*schedule.decoding, *schedule.chunks}
        waited = [0 if index in served else passes + 1 for index, passes in enumerate(waited)]
        longest = max([longest, *waited])
    assert longest <= promised


def test_without_anybody_decoding_a_prompt_is_fed_in_large_chunks() -> None:
    assert schedule_pass([prompt(10_000)], curve=STEEP, budget_tokens=64).chunks == {0: MAX_CHUNK_TOKENS}


CURVES = st.lists(
    st.tuples(st.integers(1, 4096), st.floats(1e-4, 2.0)), min_size=1, max_size=8, unique_by=lambda point: point[0]
).map(lambda points: CostCurve(rising(sorted(points))))


@given(CURVES)
def test_a_chunk_is_as_long_as_was_measured_to_take_little_time(curve: CostCurve) -> None:
    found, longest = pass_chunk_tokens(curve), curve.points[-1][0]
    assert found >= MAX_CHUNK_TOKENS
    if found > MAX_CHUNK_TOKENS:
        assert found <= longest
        assert curve.seconds(found) <= LONGEST_PROMPT_PASS_S
    if MAX_CHUNK_TOKENS <= found < longest:
        assert curve.seconds(found + 1) > LONGEST_PROMPT_PASS_S


@given(CURVES, waitings)
def test_long_chunks_stall_nobody_for_longer_than_short_ones(curve: CostCurve, waiting: list[ReadyRequest]) -> None:
    schedule = schedule_pass(waiting, curve=curve, budget_tokens=64)
    assert sum(schedule.chunks.values()) <= pass_chunk_tokens(curve)
    if schedule.decoding and sum(schedule.chunks.values()) > MIN_CHUNK_TOKENS:
        assert curve.seconds(schedule.tokens) <= STALL * curve.seconds(len(schedule.decoding)) + 1e-9


def test_a_fast_device_takes_longer_chunks_and_a_slow_one_those_it_took() -> None:
    fast = CostCurve(((1, 0.01), (64, 0.01), (512, 0.05), (1024, 0.1), (2048, 0.2)))
    slow = CostCurve(((1, 0.01), (64, 0.1), (128, 0.4)))
    assert schedule_pass([prompt(10_000)], curve=fast, budget_tokens=64).chunks == {0: 2048}
    assert schedule_pass([prompt(10_000)], curve=slow, budget_tokens=64).chunks == {0: MAX_CHUNK_TOKENS}
    # Beside somebody who decodes, no more than before.
    assert schedule_pass([decoding(), prompt(10_000)], curve=fast, budget_tokens=64).chunks == {1: 175}


def test_all_that_a_pass_may_feed_fits_into_the_windows_of_a_pool() -> None:
    assert PROMPT_TOKENS[-1] + MAX_BUDGET_TOKENS <= PASS_TOKENS


def test_beside_others_a_chunk_is_as_large_as_the_device_takes_without_stalling_them() -> None:
    schedule = schedule_pass([prompt(1000), decoding(), decoding()], curve=HINGE, budget_tokens=64)
    assert schedule.decoding == (1, 2)
    assert schedule.chunks == {0: 62}


def test_where_every_token_costs_a_chunk_is_still_worth_its_pass() -> None:
    schedule = schedule_pass([decoding(), prompt(1000)], curve=STEEP, budget_tokens=64)
    assert schedule.chunks == {1: MIN_CHUNK_TOKENS}


def test_of_equal_prompts_the_first_is_fed_first() -> None:
    schedule = schedule_pass([decoding(), prompt(40), prompt(40)], curve=HINGE, budget_tokens=64)
    assert schedule.chunks == {1: 40, 2: 23}


def test_a_long_prompt_leaves_half_of_the_room_to_short_ones() -> None:
    schedule = schedule_pass([decoding(), prompt(9000), prompt(500), prompt(20)], curve=HINGE, budget_tokens=64)
    assert schedule.chunks == {1: 32, 3: 20, 2: 11}


def test_the_first_prompt_is_fed_however_many_short_ones_come() -> None:
    left, passes = 400, 0
    while left > 0:
        schedule = schedule_pass([prompt(left), *[prompt(10)] * 20, decoding()], curve=HINGE, budget_tokens=64)
        left -= schedule.chunks[0]
        passes += 1
    assert passes == 13


def test_who_waited_too_long_gets_a_chunk_before_the_first() -> None:
    schedule = schedule_pass([decoding(), prompt(900), prompt(900, MAX_WAIT_PASSES)], curve=HINGE, budget_tokens=64)
    assert schedule.chunks == {1: 63 - MIN_CHUNK_TOKENS, 2: MIN_CHUNK_TOKENS}
    assert list(schedule.chunks) == [2, 1]


def test_more_that_decode_than_fit_go_by_how_long_they_waited() -> None:
    schedule = schedule_pass([decoding(), decoding(1), decoding(2)], curve=FLAT, budget_tokens=2)
    assert schedule.decoding == (1, 2)


def test_the_budget_follows_from_the_measured_curve() -> None:
    assert pass_budget_tokens(FLAT) == MAX_BUDGET_TOKENS
    assert pass_budget_tokens(STEEP) == MIN_BUDGET_TOKENS
    assert pass_budget_tokens(HINGE) == 128


@given(st.floats(0, 2), st.integers(0, 300))
def test_most_tokens_is_the_last_count_within_the_time(within_s: float, limit: int) -> None:
    found = most_tokens(HINGE, within_s=within_s, limit=limit)
    assert found <= limit and HINGE.seconds(found) <= within_s
    assert found == limit or HINGE.seconds(found + 1) > within_s


def test_one_that_gives_way_has_what_other_prompts_leave() -> None:
    audit = ReadyRequest(unfed_tokens=40, gives_way=True)
    assert schedule_pass([audit, prompt(2000)], curve=FLAT, budget_tokens=64).chunks == {1: pass_chunk_tokens(FLAT)}
    assert schedule_pass([audit, prompt(100)], curve=FLAT, budget_tokens=64).chunks == {0: 40, 1: 100}
    late = ReadyRequest(unfed_tokens=40, gives_way=True, waited_passes=MAX_WAIT_PASSES)
    assert schedule_pass([late, prompt(2000)], curve=FLAT, budget_tokens=64).chunks[0] == MIN_CHUNK_TOKENS
