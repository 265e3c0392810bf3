"""Measured pass times of stages, total delays, and suspicions."""

import pytest

from cosine_node.chains.measured import FORGOTTEN_S, RECENT_PASSES, SUSPECTED_S, StageSpeeds, Suspicions


def measured(*passes_s: float, expected_s: float = 0.02) -> StageSpeeds:
    speeds = StageSpeeds()
    for pass_s in passes_s:
        speeds.note("a", pass_s=pass_s, expected_s=expected_s, now_s=0.0)
    return speeds


def test_the_median_of_the_latest_passes_counts_until_it_is_forgotten() -> None:
    speeds = measured(*[9.0] * 5, *[0.02] * RECENT_PASSES, 3.0)
    assert speeds.pass_s("a", now_s=1.0) == 0.02
    assert speeds.pass_s("b", now_s=1.0) is None
    assert speeds.pass_s("a", now_s=FORGOTTEN_S) is None


def test_in_a_new_chain_what_it_does_there_counts_soon() -> None:
    speeds = measured(*[3.0] * RECENT_PASSES)
    speeds.begin("a", now_s=0.0)
    assert speeds.pass_s("a", now_s=0.0) == 3.0 and not speeds.has_cost_much("a", now_s=0.0)
    for _ in range(2):
        speeds.note("a", pass_s=0.01, expected_s=3.0, now_s=0.0)
    assert speeds.pass_s("a", now_s=0.0) == 0.01


@pytest.mark.parametrize(
    ("passes_s", "has_cost_much"),
    [
        # One long pass is an accident, three are not.
        ([20.0], False),
        ([20.0] * 3, True),
        # Small delays add up as well; equal times do not.
        ([0.03] * 99, False),
        ([0.03] * 101, True),
        ([0.0, 0.04] * 1000, False),
    ],
    ids=lambda value: f"{len(value)} passes" if isinstance(value, list) else "",
)
def test_delays_add_up(passes_s: list[float], has_cost_much: bool) -> None:
    speeds = measured(*passes_s)
    assert speeds.has_cost_much("a", now_s=0.0) == has_cost_much
    speeds.forgive("a", now_s=0.0)
    assert not speeds.has_cost_much("a", now_s=0.0)


def test_who_takes_twice_as_long_as_announced_has_lied() -> None:
    assert not measured(*[0.03] * 50).is_deceived(now_s=0.0)
    assert not measured(0.2, 0.2).is_deceived(now_s=0.0)
    assert measured(*[0.05] * 5).is_deceived(now_s=0.0)


def test_a_fault_is_that_of_one_or_shared_by_two_and_they_add_up_until_they_are_forgotten() -> None:
    suspicions = Suspicions()
    suspicions.note(["liar", "first"], now_s=0.0)
    assert suspicions.weights(now_s=0.0) == {"liar": 1, "first": 1}
    suspicions.note(["liar", "second"], now_s=1.0)
    suspicions.note(["alone"], now_s=1.0)
    assert suspicions.weights(now_s=1.0) == {"liar": 2, "first": 1, "second": 1, "alone": 2}
    assert suspicions.weights(now_s=SUSPECTED_S) == {"liar": 1, "second": 1, "alone": 2}
