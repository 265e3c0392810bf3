"""Rate limits of peers and address ranges, and the silence after a flood."""

from hypothesis import given
from hypothesis import strategies as st

from cosine_p2p.trust.call_budget import (
    MAX_BUCKETS,
    MAX_REFUSED,
    PEER_BURST,
    PEER_RATE,
    RANGE_FACTOR,
    SILENCED_S,
    CallBudget,
)


def test_a_peer_that_goes_on_is_answered_nothing_for_a_minute() -> None:
    budget = CallBudget(peer_rate=10, peer_burst=5)
    for _ in range(5 + MAX_REFUSED):
        budget.spend("a", 1, now_s=0.0)
    assert budget.is_silenced("a", now_s=1.0)
    assert not budget.spend("a", 1, now_s=SILENCED_S - 1)
    assert not budget.is_silenced("a", now_s=SILENCED_S)
    assert budget.spend("a", 1, now_s=SILENCED_S)
    assert not budget.is_silenced("b", now_s=1.0)


def test_who_is_refused_for_its_neighbours_is_not_silenced() -> None:
    budget = CallBudget(peer_rate=0, peer_burst=10)
    for number in range(int(RANGE_FACTOR)):
        assert budget.spend(f"peer {number}", 10, address_range="one", now_s=0.0)
    for _ in range(2 * MAX_REFUSED):
        assert not budget.spend("honest", 1, address_range="one", now_s=0.0)
    assert not budget.is_silenced("honest", now_s=0.0)
    assert budget.spend("honest", 1, address_range="two", now_s=0.0)


def test_a_fine_is_more_than_there_is_and_what_is_owed_takes_its_time() -> None:
    budget = CallBudget(peer_rate=10, peer_burst=5)
    budget.owe("fined", 25, now_s=0.0)
    assert not budget.spend("fined", 1, now_s=2.0)
    assert budget.spend("fined", 1, now_s=2.2)
    budget = CallBudget(peer_rate=10, peer_burst=5)
    assert budget.owe("a", 5, now_s=0.0) == 0.0
    assert budget.owe("a", 20, now_s=0.0) == 2.0
    assert budget.owe("b", 5, now_s=0.0) == 0.0
    assert budget.owe("a", 0, now_s=1.5) == 0.5
    assert budget.owe("a", 0, now_s=2.5) == 0.0


def test_who_owes_for_long_is_silenced_for_a_minute_and_who_pauses_half_the_time_is_not() -> None:
    budget, now_s = CallBudget(peer_rate=10, peer_burst=10, flood_s=30.0), 0.0
    while not budget.is_silenced("flood", now_s=now_s):
        now_s += budget.owe("flood", 7, now_s=now_s)
    assert 30.0 <= now_s < 33.0
    assert budget.is_silenced("flood", now_s=now_s + SILENCED_S - 1)
    now_s += SILENCED_S
    budget.owe("flood", 7, now_s=now_s)
    assert not budget.is_silenced("flood", now_s=now_s)
    for _ in range(100):
        ends_s = now_s + 10.0
        while now_s < ends_s:
            now_s += budget.owe("honest", 7, now_s=now_s)
        assert not budget.is_silenced("honest", now_s=now_s)
        now_s += 11.0
        budget.owe("honest", 0, now_s=now_s)


@given(st.lists(st.tuples(st.floats(0, 1), st.integers(0, 5), st.floats(0, 40)), max_size=300))
def test_nobody_gets_more_than_burst_and_rate(calls: list[tuple[float, int, float]]) -> None:
    budget, now_s = CallBudget(), 0.0
    spent = [0.0] * 6
    for pause_s, number, units in calls:
        now_s += pause_s
        if budget.spend(f"peer {number}", units, address_range="one", now_s=now_s):
            spent[number] += units
    assert max(spent) <= PEER_BURST + PEER_RATE * now_s + 1e-6
    assert sum(spent) <= RANGE_FACTOR * (PEER_BURST + PEER_RATE * now_s) + 1e-6


def test_what_is_remembered_is_bounded() -> None:
    budget = CallBudget()
    budget.owe("first", 1e9, now_s=0.0)
    assert not budget.spend("first", 1, now_s=0.0)
    for number in range(MAX_BUCKETS):
        budget.spend(f"peer {number}", 1, now_s=0.0)
    assert budget.spend("first", 1, now_s=0.0)
