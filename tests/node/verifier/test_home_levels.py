"""The passes of a verifier's own drafter: as many as bring more tokens a second, none where others did the work."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cosine_node.engine.curve import CostCurve
from cosine_node.verifier.home_drafter import MAX_LEVELS, HomePlan, HomeProspect, HomeRates, plan_home_drafts

TARGET = CostCurve(((1, 0.060), (4, 0.060), (8, 0.066), (16, 0.082), (32, 0.117)))
DRAFTER = CostCurve(((1, 0.006), (8, 0.00625), (16, 0.0075), (32, 0.0099)))
RATES = st.builds(HomeRates, st.floats(0, 1), st.floats(0, 1))
PROSPECTS = st.builds(
    HomeProspect,
    covered=st.floats(0, 8),
    rates=RATES,
    unread_tokens=st.integers(1, 4000),
    passes_left=st.floats(1, 500),
    max_levels=st.integers(0, MAX_LEVELS),
)


def prospect(
    *, covered: float = 0.0, first: float = 0.5, following: float = 0.5, unread_tokens: int = 1, max_levels: int = 8
) -> HomeProspect:
    return HomeProspect(
        covered=covered,
        rates=HomeRates(first, following),
        unread_tokens=unread_tokens,
        passes_left=50.0,
        max_levels=max_levels,
    )


def plan(*prospects: HomeProspect, slowness: float = 1.0) -> HomePlan:
    return plan_home_drafts(prospects, target_curve=TARGET, drafter_curve=DRAFTER, slowness=slowness)


def test_an_empty_tree_is_drafted_for_as_deep_as_the_drafter_is_good() -> None:
    assert plan(prospect()).levels == 2
    assert plan(prospect(first=0.8, following=0.8)).levels > 4
    assert plan(prospect(first=0.05, following=0.05)) == HomePlan()


def test_who_has_more_from_others_than_the_drafter_promises_is_left_alone() -> None:
    assert plan(prospect(covered=1.5)) == HomePlan()
    assert plan(prospect(covered=1.5), prospect(first=0.8)).joining == (1,)


def test_who_is_well_served_does_not_wait_for_who_gains_little() -> None:
    assert plan(prospect(covered=3.0), prospect()) == HomePlan()


def test_a_drafter_that_is_as_slow_as_the_target_drafts_nothing() -> None:
    assert plan(prospect(), slowness=10.0) == HomePlan()


def test_a_long_text_to_read_is_weighed_against_the_passes_that_profit() -> None:
    assert plan(prospect(unread_tokens=500)).levels
    assert plan(prospect(unread_tokens=50_000)) == HomePlan()


def test_a_request_near_its_end_gets_no_more_than_it_has_room_for() -> None:
    assert plan(prospect(first=0.9, following=0.9, max_levels=1)).levels == 1
    assert plan(prospect(max_levels=0)) == HomePlan()


def test_nobody_to_draft_for_is_no_plan() -> None:
    assert plan() == HomePlan()


@given(st.lists(PROSPECTS, max_size=8), st.floats(0.1, 20))
def test_a_plan_never_promises_less_than_none(prospects: list[HomeProspect], slowness: float) -> None:
    made = plan(*prospects, slowness=slowness)
    assert 0 <= made.levels <= MAX_LEVELS and bool(made.levels) == bool(made.joining)
    for index in made.joining:
        joined = prospects[index]
        assert made.levels <= joined.max_levels and joined.expected(made.levels) > joined.covered


@given(RATES, st.integers(0, MAX_LEVELS), st.integers(1, MAX_LEVELS), st.floats(0.01, 0.5))
def test_rates_stay_rates(rates: HomeRates, accepted: int, levels: int, weight: float) -> None:
    learned = rates.learn(accepted=accepted, levels=levels, weight=weight)
    assert 0 <= learned.first <= 1 and 0 <= learned.next <= 1
    assert 0 <= learned.expected(levels) <= levels


def test_rates_follow_what_is_accepted() -> None:
    rates = HomeRates(0.5, 0.5)
    for _ in range(200):
        rates = rates.learn(accepted=2, levels=3, weight=0.1)
    assert rates.first == pytest.approx(1.0, abs=0.01)
    # Of the second and the third token one was right.
    assert rates.next == pytest.approx(0.5, abs=0.1)
