"""Texts outlive changes of networks: one of each kind, and what the rounds plan and tell."""

import pytest

from tests.network.home_router import RouterKind
from tests.network.laboratory import Laboratory
from tests.network.rounds import CHANGE_AFTER_TOKENS, Change, Found, Round, planned, play, report

pytestmark = pytest.mark.network


def test_a_plan_has_each_change_as_often_and_is_that_of_its_seed() -> None:
    plan = planned(seed=3, rounds=12)
    assert {change: sum(one.change is change for one in plan) for change in Change} == dict.fromkeys(Change, 3)
    assert plan == planned(seed=3, rounds=12) != planned(seed=4, rounds=12)


def test_what_went_wrong_is_told_beside_the_medians() -> None:
    founds = [
        Found(Change.HOME, "light", found_s=2.0, still_s=6.0),
        Found(Change.HOME, "full", found_s=4.0, still_s=7.0),
        Found(Change.RELAY, "full", found_s=1.0, still_s=9.0, error="another text"),
    ]
    told = report(founds)
    assert told["wrong_or_lost"] == [f"{Change.RELAY}, full: another text"]
    assert told["changes"][Change.HOME.value]["found_s"] == {"median": 3.0, "worst": 4.0}
    assert Change.CLIENT.value not in told["changes"]


@pytest.mark.lab
@pytest.mark.parametrize("transport", ["light", "full"])
def test_a_text_is_the_same_whatever_moves_in_the_middle_of_it(lab: Laboratory, transport: str) -> None:
    plan = [Round(change, CHANGE_AFTER_TOKENS[0], transport, RouterKind.SYMMETRIC, 1.0) for change in Change]
    assert [(found.change, found.error) for found in play(lab, plan)] == [(change, "") for change in Change]
