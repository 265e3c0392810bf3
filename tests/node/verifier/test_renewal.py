"""Hold or go as a comparison of two renewal cycles; both rates are checked against a simulation of the cycle."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cosine_node.verifier.renewal import MAX_LEVELS, Rhythm, best_levels

CHANCES = st.floats(0.0, 0.97)
SECONDS = st.floats(0.001, 0.3)


def rhythm(**changes: float) -> Rhythm:
    usual = {
        "plain_s": 0.06,
        "drafted_s": 0.065,
        "delay_s": 0.02,
        "gap_s": 0.006,
        "chance": 0.75,
        "run_tokens": 3.0,
        "run_chance": 0.6,
    }
    return Rhythm(**{**usual, **changes})


RHYTHMS = st.builds(
    Rhythm,
    plain_s=SECONDS,
    drafted_s=SECONDS,
    delay_s=SECONDS,
    gap_s=SECONDS,
    chance=CHANCES,
    run_tokens=st.floats(1.0, 10.0),
    run_chance=CHANCES,
)


def simulated(known: Rhythm, *, levels: int, cycles: int = 40_000) -> float:
    """Tokens per second of cycles from miss to miss; `levels` 0 means going on plainly."""
    rng = random.Random(5)
    time_s = tokens = 0.0
    for _ in range(cycles):
        ready = levels
        if levels:
            time_s += known.delay_s + (levels - 1) * known.gap_s
        else:
            ready, passes = 0, 0
            while ready < 1:
                passes += 1
                time_s += known.plain_s
                tokens += 1
                if rng.random() >= known.chance:
                    break
                late_s = passes * known.plain_s - known.delay_s
                ready = int(late_s / known.gap_s) + 1 - passes if late_s >= 0 else 0
            if ready < 1:
                continue
        time_s += known.drafted_s
        hits = next((hit for hit in range(ready + 1) if rng.random() >= known.chance), ready + 1)
        tokens += 1 + min(hits, ready)
        is_running = hits > ready
        while is_running:
            time_s += known.drafted_s
            tokens += known.run_tokens
            is_running = rng.random() < known.run_chance
    return tokens / time_s


@pytest.mark.parametrize("levels", [0, 1, 3])
@pytest.mark.parametrize("delay_s", [0.006, 0.046, 0.106])
def test_the_closed_form_is_the_mean_of_many_cycles(levels: int, delay_s: float) -> None:
    known = rhythm(delay_s=delay_s)
    closed = known.holding(levels) if levels else known.going()
    assert closed == pytest.approx(simulated(known, levels=levels), rel=0.02)


@given(known=RHYTHMS)
def test_what_is_chosen_is_at_least_as_good_as_going(known: Rhythm) -> None:
    levels, rate = best_levels(known)
    assert 0 <= levels <= MAX_LEVELS
    assert rate >= known.going() or rate == pytest.approx(known.going())
    assert rate == (known.holding(levels) if levels else known.going())


@given(known=RHYTHMS, later_s=SECONDS)
def test_drafts_that_come_later_are_not_worth_more(known: Rhythm, later_s: float) -> None:
    later = rhythm(
        plain_s=known.plain_s,
        drafted_s=known.drafted_s,
        delay_s=known.delay_s + later_s,
        gap_s=known.gap_s,
        chance=known.chance,
        run_tokens=known.run_tokens,
        run_chance=known.run_chance,
    )
    for levels in range(1, MAX_LEVELS + 1):
        assert later.holding(levels) <= known.holding(levels)


def test_near_and_weak_drafts_are_waited_for_far_or_strong_ones_are_not() -> None:
    assert best_levels(rhythm(delay_s=0.006, chance=0.5))[0] > 0
    assert best_levels(rhythm(delay_s=0.1, chance=0.5))[0] == 0
    assert best_levels(rhythm(delay_s=0.006, chance=0.9))[0] == 0
