"""The standing of verifiers with a client: levels, the cost of a lie, and trials."""

import random
from statistics import fmean

import pytest

from cosine_p2p.trust.standing import LIE_PRICE, PROVEN, RAREST_TRIAL, TRIAL_EVERY, Standings

KEY = "key"


def with_checks(count: int) -> Standings:
    standings = Standings()
    for _ in range(count):
        standings.note_right(KEY, now_s=0.0)
    return standings


def test_a_level_takes_twice_the_checks_of_the_one_below() -> None:
    levels = {count: with_checks(count).levels([KEY], now_s=0.0)[KEY] for count in (0, 1, 2, 3, 4, 8, 63, 64, 200)}
    assert levels == {0: 0, 1: 1, 2: 2, 3: 2, 4: 3, 8: 4, 63: 6, 64: 7, 200: 7}


def test_the_first_texts_are_all_audited_and_those_of_a_proven_one_as_often_as_the_user_wants() -> None:
    chances = [with_checks(count).audit_chance(KEY, 0.05, now_s=0.0) for count in range(PROVEN + 1)]
    assert chances[:4] == [1.0] * 4 and chances == sorted(chances, reverse=True)
    assert chances[-1] == pytest.approx(0.05)


@pytest.mark.parametrize("honest_texts", [0, 1, 100])
def test_a_lie_costs_several_right_texts(honest_texts: int) -> None:
    """A verifier writes correct texts and then lies until an audit detects it: the mean of 400 keys."""
    rng, lies = random.Random(honest_texts), []
    for _ in range(400):
        standings, count = Standings(), 0
        while True:
            count += 1
            if rng.random() < standings.audit_chance(KEY, 0.05, now_s=0.0):
                if count > honest_texts:
                    break
                standings.note_right(KEY, now_s=0.0)
        lies.append(count - honest_texts)
    # The first lie of a new key is detected at once; later ones have their price.
    assert fmean(lies) <= 1 + 1.1 * honest_texts / LIE_PRICE


def test_who_was_found_wrong_stays_so_whatever_else_comes() -> None:
    standings = with_checks(5)
    standings.reject(KEY, now_s=0.0)
    for number in range(5000):
        standings.note_right(f"new {number}", now_s=1.0)
    standings.note_right(KEY, now_s=1.0)
    assert standings.rejected(1.0) == {KEY} and standings.checks(KEY, now_s=1.0) == 0


def test_with_each_verifier_that_was_found_wrong_newcomers_are_tried_less_often() -> None:
    standings, chances = Standings(), []
    for number in range(10):
        chances.append(standings.trial_chance(0.0))
        standings.reject(f"liar {number}", now_s=0.0)
    assert chances[:3] == [1 / TRIAL_EVERY, 1 / (2 * TRIAL_EVERY), 1 / (3 * TRIAL_EVERY)]
    assert chances[-1] == 1 / RAREST_TRIAL
