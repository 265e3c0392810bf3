"""The schedule of a pass: decoding first, prompts in chunks, and no starvation."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cosine_engine.curve import CostCurve, rising
from cosine_node.passes.fair_pass import CROWD
from cosine_node.passes.feed_pace import MIN_CHUNK_TOKENS
from cosine_node.verifier.costs import MOST_TOKENS, pass_chunk_tokens
from cosine_node.verifier.scheduler import MAX_WAIT_PASSES, STALL, PassSchedule, schedule_pass
from cosine_p2p.fair_places import Turns, User

FLAT = CostCurve(((1, 0.06), (1024, 0.06)))
STEEP = CostCurve(((1, 0.01), (64, 0.64)))
HINGE = CostCurve(((1, 0.1), (32, 0.1), (64, 0.2)))


@dataclass(frozen=True, slots=True)
class Ready:
    """The fields of a request that a schedule uses; it decodes without unfed tokens."""

    unfed_tokens: int = 0
    waited_passes: int = 0
    client: str = ""
    gives_way: bool = False

    @property
    def user(self) -> User:
        return User(self.client)


def scheduled(requests: Sequence[Ready], curve: CostCurve, *, budget_tokens: int = 64) -> PassSchedule:
    ready: Any = requests
    return schedule_pass(
        ready, curve=curve, most_tokens=budget_tokens, chunk_tokens=pass_chunk_tokens(curve), turns=Turns()
    )


waitings = st.lists(
    st.builds(Ready, st.integers(0, 2000) | st.just(0), st.integers(0, 3 * MAX_WAIT_PASSES)), max_size=30
)


CURVES = st.lists(
    st.tuples(st.integers(1, 4096), st.floats(1e-4, 2.0)), min_size=1, max_size=8, unique_by=lambda point: point[0]
).map(lambda points: CostCurve(rising(sorted(points))))


@given(waitings, st.sampled_from([FLAT, STEEP, HINGE]) | CURVES, st.integers(1, 64))
def test_a_pass_stays_within_the_budget_and_within_what_is_unfed_and_stalls_nobody(
    waiting: list[Ready], curve: CostCurve, budget_tokens: int
) -> None:
    schedule = scheduled(waiting, curve, budget_tokens=budget_tokens)
    assert len(schedule.decoding) == min(budget_tokens, sum(not one.unfed_tokens for one in waiting))
    assert all(not waiting[index].unfed_tokens for index in schedule.decoding)
    assert all(0 < tokens <= waiting[index].unfed_tokens for index, tokens in schedule.chunks.items())
    assert bool(schedule.chunks) == any(one.unfed_tokens for one in waiting)
    assert sum(schedule.chunks.values()) <= pass_chunk_tokens(curve)
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
    """A crowd lengthens passes little for a client of few requests; cheap passes take all."""
    clients = [str(number) for number, count in enumerate(counts) for _ in range(count)]
    random.shuffle(clients)
    waited, served = [0] * len(clients), Counter[int]()
    for _ in range(3 * max(counts)):
        ready = [Ready(0, passes, client) for client, passes in zip(clients, waited, strict=True)]
        chosen = scheduled(ready, curve, budget_tokens=len(clients)).decoding
        served.update(chosen)
        waited = [0 if index in chosen else passes + 1 for index, passes in enumerate(waited)]
        fewest = min(counts)
        shares = Counter(clients[index] for index in chosen)
        assert all(shares[client] >= fewest for client in shares) and len(shares) == len(counts)
        least_s = max(CROWD * curve.seconds(fewest), curve.seconds(fewest * len(counts)))
        assert curve.seconds(len(chosen)) <= least_s + 1e-9
        assert len(chosen) == len(clients) or curve is not FLAT
    assert len(served) == len(clients)


@given(waitings, st.integers(1, 16))
def test_nobody_waits_for_longer_than_is_promised(waiting: list[Ready], budget_tokens: int) -> None:
    """Endless prompts without newcomers are the worst case for the last request."""
    endless = [Ready(10**9 if one.unfed_tokens else 0) for one in waiting]
    waited, longest = [0] * len(endless), 0
    promised = MAX_WAIT_PASSES + len(endless) * max(1, MIN_CHUNK_TOKENS // budget_tokens) + len(endless)
    for _ in range(2 * promised):
        present = [Ready(one.unfed_tokens, passes) for one, passes in zip(endless, waited, strict=True)]
        schedule = scheduled(present, STEEP, budget_tokens=budget_tokens)
        served = {*schedule.decoding, *schedule.chunks}
        waited = [0 if index in served else passes + 1 for index, passes in enumerate(waited)]
        longest = max([longest, *waited])
    assert longest <= promised


FAST = CostCurve(((1, 0.01), (64, 0.01), (512, 0.05), (1024, 0.1), (2048, 0.2)))
DECODES = Ready()


@pytest.mark.parametrize(
    ("requests", "curve", "chunks"),
    [
        ([Ready(10_000)], STEEP, {0: MOST_TOKENS}),
        ([Ready(10_000)], FAST, {0: 2048}),
        ([DECODES, Ready(10_000)], FAST, {1: 175}),
        ([DECODES, Ready(1000)], STEEP, {1: MIN_CHUNK_TOKENS}),
        ([DECODES, Ready(9000), Ready(500), Ready(20)], HINGE, {1: 32, 3: 20, 2: 11}),
        ([DECODES, Ready(900), Ready(900, MAX_WAIT_PASSES)], HINGE, {2: 16, 1: 63 - 16}),
        ([Ready(40, gives_way=True), Ready(2000)], FLAT, {1: pass_chunk_tokens(FLAT)}),
        ([Ready(40, MAX_WAIT_PASSES, gives_way=True), Ready(2000)], FLAT, {0: 16, 1: pass_chunk_tokens(FLAT) - 16}),
    ],
    ids=[
        "alone, in large chunks",
        "alone, as measured to take little time",
        "beside others no more than before",
        "where every token costs, still worth its pass",
        "half to short ones",
        "who waited too long before the first",
        "who gives way after others",
        "who gives way does not wait for ever",
    ],
)
def test_prompts_share_what_a_pass_has_room_for(
    requests: list[Ready], curve: CostCurve, chunks: dict[int, int]
) -> None:
    found = scheduled(requests, curve).chunks
    assert (found, list(found)) == (chunks, list(chunks))
