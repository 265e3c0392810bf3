"""What a head knows of stages: measured times and delays, suspicions, and trust after contradictions."""

from typing import Any, Final

import pytest

from cosine_node.chains.known_stages import (
    CHECK_SHARE,
    CLEARLY,
    FORGOTTEN_S,
    RECENT_PASSES,
    SUSPECTED_S,
    Disputes,
    StageSpeeds,
    Suspicions,
)
from cosine_node.chains.traces import Contradiction
from cosine_p2p.trust.standing import PROVEN
from cosine_protocol.stage import LayerRange


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


def test_a_fault_is_that_of_one_or_shared_by_two_and_they_add_up_until_they_are_forgotten() -> None:
    suspicions = Suspicions()
    suspicions.note(["liar", "first"], now_s=0.0)
    assert suspicions.weights(now_s=0.0) == {"liar": 1, "first": 1}
    suspicions.note(["liar", "second"], now_s=1.0)
    suspicions.note(["alone"], now_s=1.0)
    assert suspicions.weights(now_s=1.0) == {"liar": 2, "first": 1, "second": 1, "alone": 2}
    assert suspicions.weights(now_s=SUSPECTED_S) == {"liar": 1, "second": 1, "alone": 2}


# Trust after contradictions.

NOW: Final[dict[str, float]] = {"now_s": 0.0}


def between(ones: str, others: str, **fields: Any) -> Contradiction:
    """A contradiction between stages with one-letter names."""
    layers = LayerRange(first=8, end=16, layers=24)
    return Contradiction(ones=tuple(ones), others=tuple(others), layers=layers, place=(0, 16), **fields)


def known(**checks: int) -> Disputes:
    """Disputes with this number of right checks of each stage."""
    disputes = Disputes()
    for name, count in checks.items():
        for _ in range(count):
            disputes.standings.note_right(name, **NOW)
    return disputes


def test_the_side_with_four_times_the_checks_is_believed() -> None:
    disputes = known(a=4 * CLEARLY, b=CLEARLY)
    assert disputes.judge(between("a", "b"), **NOW) == ("b",)
    assert disputes.set_aside(0.0) == {"b"} and not disputes.open(0.0)


def test_of_two_that_nobody_knows_both_are_set_aside_until_one_is_found_wrong() -> None:
    disputes = known(a=CLEARLY - 1)
    assert disputes.judge(between("a", "b"), **NOW) == ()
    assert disputes.set_aside(0.0) == {"a", "b"}
    assert str(disputes.open(0.0)[0]) == "Stages a and b disagree about layers 8:16 of 24"
    disputes.note_wrong("b", between("a", "b").layers, **NOW)
    assert disputes.set_aside(0.0) == {"b"} and not disputes.open(0.0)


def test_of_a_side_of_several_nobody_is_found_wrong_alone() -> None:
    disputes = known(c=CLEARLY)
    assert disputes.judge(between("ab", "c"), **NOW) == ("a", "b")
    assert not disputes.standings.rejected(0.0)
    assert disputes.set_aside(0.0) == {"a", "b"}


def test_neighbours_that_disagree_go_apart_and_who_does_so_twice_is_found_wrong() -> None:
    disputes = Disputes()
    assert disputes.judge(between("a", "b", is_link=True), **NOW) == ()
    assert not disputes.set_aside(0.0)
    assert disputes.are_free("acb", **NOW) and not disputes.are_free("cba", **NOW)
    assert disputes.judge(between("b", "a", is_link=True), **NOW) == ()
    assert disputes.judge(between("c", "b", is_link=True), **NOW) == ("b",)
    assert disputes.standings.rejected(0.0) == {"b"} and not disputes.apart(0.0)


def test_a_newcomer_does_not_get_a_known_stage_found_wrong_by_blaming_it() -> None:
    disputes = known(honest=PROVEN)
    for name in ("liar", "another"):
        found = Contradiction(
            ones=(name,), others=("honest",), layers=between("a", "b").layers, place=(0, 16), is_link=True
        )
        assert disputes.judge(found, **NOW) == (name,)
    assert disputes.standings.rejected(0.0) == {"liar", "another"}


@pytest.mark.parametrize(
    ("checks", "chance"), [((0, PROVEN), 1.0), ((32, PROVEN), 0.1), ((PROVEN, PROVEN), CHECK_SHARE)]
)
def test_the_least_checked_of_a_chain_decides_how_often_it_is_checked(
    checks: tuple[int, int], chance: float
) -> None:
    disputes = known(a=checks[0], b=checks[1])
    assert disputes.check_chance("ab", **NOW) == pytest.approx(chance)
    assert disputes.are_checked("ab", **NOW) == (checks[0] > 0)


def test_stages_with_a_few_checks_are_alike_so_that_speed_decides() -> None:
    disputes = known(a=1, b=CLEARLY, c=PROVEN)
    levels = disputes.levels("abcd", **NOW)
    assert levels["d"] < levels["a"] < levels["b"] == levels["c"]
