"""Wait-or-go: the formulas of the module's docstring, its deadlines, and going when nothing is known."""

import random

import pytest

from cosine_node.verifier.patience import MIN_SAMPLES, SLACK, SLACK_S, Patience
from cosine_node.verifier.renewal import Rhythm, best_levels

PASS_S = 0.05


def primed(*, delay_s: float, gap_s: float = 0.01, acceptance: float = 1.0) -> Patience:
    """A patience that has seen several misses, each followed by drafts `delay_s` later and then `gap_s` apart."""
    patience = Patience()
    now_s = 0.0
    for index in range(40):
        patience.note_pass(
            began_s=now_s,
            ended_s=now_s + PASS_S,
            nodes=1,
            tokens=1 + int((index + 1) * acceptance) - int(index * acceptance),
            is_tree_empty=True,
        )
        now_s += PASS_S
        patience.note_arrival(now_s + delay_s, deepest=2 * index)
        patience.note_arrival(now_s + delay_s + gap_s, deepest=2 * index + 1)
        now_s += delay_s + gap_s
    patience.note_pass(began_s=now_s, ended_s=now_s + PASS_S, nodes=0, tokens=1, is_tree_empty=True)
    return patience


def ended_at(*, delay_s: float, gap_s: float = 0.01) -> float:
    """When the last pass of a primed patience ended."""
    return 40 * (PASS_S + delay_s + gap_s) + PASS_S


def rhythm_of(patience: Patience) -> Rhythm:
    rhythm = patience.rhythm(PASS_S)
    assert rhythm is not None
    return rhythm


def hold(patience: Patience, now_s: float, leaf: float | None = None, plain_pass_s: float = PASS_S) -> float:
    return patience.hold_until(now_s, plain_pass_s=plain_pass_s, leaf_probability=leaf)


def test_without_samples_it_goes() -> None:
    patience = Patience()
    assert hold(patience, 3.0) == 3.0
    assert hold(patience, 3.0, leaf=0.9) == 3.0
    patience.note_pass(began_s=0.0, ended_s=0.05, nodes=1, tokens=2, is_tree_empty=True)
    for _ in range(MIN_SAMPLES - 1):
        patience.note_arrival(0.06, deepest=1)
    assert hold(patience, 0.07) == 0.07


def test_a_draft_known_to_come_soon_is_worth_waiting_for() -> None:
    patience = primed(delay_s=0.002, acceptance=0.4)
    now_s = ended_at(delay_s=0.002)
    assert hold(patience, now_s) == pytest.approx(now_s + SLACK * 0.002 + SLACK_S, abs=1e-6)


def test_a_draft_that_takes_longer_than_a_pass_is_not() -> None:
    patience = primed(delay_s=0.2)
    assert hold(patience, ended_at(delay_s=0.2)) == ended_at(delay_s=0.2)


@pytest.mark.parametrize("acceptance", [0.2, 0.6, 1.0])
@pytest.mark.parametrize("delay_s", [0.002, 0.01, 0.03, 0.06])
def test_an_empty_pass_is_held_where_that_gives_more_tokens_per_second(delay_s: float, acceptance: float) -> None:
    patience = primed(delay_s=delay_s, acceptance=acceptance)
    now_s = ended_at(delay_s=delay_s)
    levels, _ = best_levels(rhythm_of(patience))
    assert (hold(patience, now_s) > now_s) is (levels > 0)


@pytest.mark.parametrize("leaf", [0.05, 0.3, 0.9])
@pytest.mark.parametrize("gap_s", [0.001, 0.005, 0.02, 0.1])
@pytest.mark.parametrize("acceptance", [0.3, 0.95])
def test_a_drafted_pass_is_held_by_the_formula(gap_s: float, leaf: float, acceptance: float) -> None:
    patience = primed(delay_s=0.01, gap_s=gap_s, acceptance=acceptance)
    arrived_s = ended_at(delay_s=0.01, gap_s=gap_s) + 0.01
    patience.note_arrival(arrived_s, deepest=100)
    rhythm = rhythm_of(patience)
    _, rate = best_levels(rhythm)
    kept = 1 - (1 - rhythm.chance) * rate * rhythm.delay_s
    pays = leaf * rhythm.chance * kept > rate * rhythm.gap_s * (1 + rhythm.delay_s / PASS_S)
    until_s = hold(patience, arrived_s, leaf)
    assert (until_s > arrived_s) is pays
    if pays:
        assert until_s == pytest.approx(arrived_s + SLACK * rhythm.gap_s + SLACK_S)


def test_a_wait_is_counted_from_the_miss_however_many_passes_lie_between() -> None:
    patience = Patience()
    patience.note_pass(began_s=0.0, ended_s=0.05, nodes=2, tokens=1, is_tree_empty=True)
    patience.note_pass(began_s=0.05, ended_s=0.1, nodes=0, tokens=1, is_tree_empty=True)
    patience.note_arrival(0.17, deepest=4)
    assert patience.delay_s == pytest.approx(0.12)


def test_levels_that_arrive_together_share_the_time_since_the_last() -> None:
    patience = Patience()
    patience.note_arrival(0.10, deepest=4)
    patience.note_arrival(0.11, deepest=4)
    patience.note_arrival(0.16, deepest=7)
    assert patience.gap_s == pytest.approx(0.02)


@pytest.mark.parametrize("seed", range(50))
def test_a_pass_is_never_held_beyond_its_deadline(seed: int) -> None:
    rng = random.Random(seed)
    patience, now_s, emptied_s, arrived_s = Patience(), 0.0, 0.0, 0.0
    for _ in range(300):
        now_s += rng.expovariate(50)
        if rng.random() < 0.5:
            patience.note_arrival(now_s, deepest=rng.randrange(1000))
            arrived_s = now_s
        else:
            began_s, now_s = now_s, now_s + PASS_S
            is_empty = rng.random() < 0.5
            patience.note_pass(
                began_s=began_s,
                ended_s=now_s,
                nodes=rng.randrange(3),
                tokens=rng.randrange(1, 4),
                is_tree_empty=is_empty,
            )
            emptied_s = now_s if is_empty else emptied_s
        late_s = max(
            emptied_s + SLACK * (patience.delay_s or 0.0) + SLACK_S,
            arrived_s + SLACK * (patience.gap_s or 0.0) + SLACK_S,
        )
        for leaf in (None, rng.random()):
            assert hold(patience, now_s, leaf) <= max(now_s, late_s)
        assert hold(patience, late_s + 1e-6) <= late_s + 1e-6
