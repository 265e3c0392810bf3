"""Which stages are trusted after contradictions."""

from typing import Any, Final

import pytest

from cosine_node.chains.known_stages import CHECK_SHARE, CLEARLY, Disputes
from cosine_node.chains.traces import Contradiction
from cosine_p2p.trust.standing import PROVEN
from cosine_protocol.stage import LayerRange

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
            disputes.note_right(name, **NOW)
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
