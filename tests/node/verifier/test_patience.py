"""Wait-or-go: the formulas of the module's docstring, its deadlines, and going when nothing is known."""

import random

import pytest

from cosine_node.verifier.patience import MIN_SAMPLES, SLACK, SLACK_S, Patience

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
            tokens=1 + (index % 20 < 20 * acceptance),
            is_tree_empty=True,
        )
        now_s += PASS_S
        patience.note_arrival(now_s + delay_s)
        patience.note_arrival(now_s + delay_s + gap_s)
        now_s += delay_s + gap_s
    patience.note_pass(began_s=now_s, ended_s=now_s + PASS_S, nodes=0, tokens=1, is_tree_empty=True)
    return patience


def ended_at(patience: Patience) -> float:
    """When the last pass of a primed patience ended."""
    at_s = patience._ended_at_s
    assert at_s is not None
    return at_s


def rate_of(patience: Patience) -> float:
    """L: what the request had, or what holding every empty pass would give."""
    assert patience.delay_s is not None
    held = patience._drafted_tokens / (patience.delay_s + patience._drafted_pass_s)
    return max(patience.tokens_per_s or 0.0, held)


def hold(patience: Patience, now_s: float, leaf: float | None = None, plain_pass_s: float = PASS_S) -> float:
    return patience.hold_until(now_s, plain_pass_s=plain_pass_s, leaf_probability=leaf)


def test_without_samples_it_goes() -> None:
    patience = Patience()
    assert hold(patience, 3.0) == 3.0
    assert hold(patience, 3.0, leaf=0.9) == 3.0
    patience.note_pass(began_s=0.0, ended_s=0.05, nodes=1, tokens=2, is_tree_empty=True)
    for _ in range(MIN_SAMPLES - 1):
        patience.note_arrival(0.06)
    assert hold(patience, 0.07) == 0.07


def test_a_draft_known_to_come_soon_is_worth_waiting_for() -> None:
    patience = primed(delay_s=0.005)
    now_s = ended_at(patience)
    assert hold(patience, now_s) == pytest.approx(now_s + SLACK * 0.005 + SLACK_S, abs=1e-6)


def test_a_draft_that_takes_longer_than_a_pass_is_not() -> None:
    patience = primed(delay_s=0.2)
    assert hold(patience, ended_at(patience)) == ended_at(patience)


@pytest.mark.parametrize("acceptance", [0.2, 0.6, 1.0])
@pytest.mark.parametrize("delay_s", [0.002, 0.01, 0.03, 0.06])
def test_an_empty_pass_is_held_by_the_formula(delay_s: float, acceptance: float) -> None:
    patience = primed(delay_s=delay_s, acceptance=acceptance)
    now_s = ended_at(patience)
    assert patience.delay_s is not None and patience.acceptance is not None
    pays = rate_of(patience) * (PASS_S - patience.acceptance * patience.delay_s) > 1
    assert (hold(patience, now_s) > now_s) is pays


@pytest.mark.parametrize("leaf", [0.05, 0.3, 0.9])
@pytest.mark.parametrize("gap_s", [0.001, 0.005, 0.02, 0.1])
@pytest.mark.parametrize("acceptance", [0.3, 0.95])
def test_a_drafted_pass_is_held_by_the_formula(gap_s: float, leaf: float, acceptance: float) -> None:
    patience = primed(delay_s=0.01, gap_s=gap_s, acceptance=acceptance)
    arrived_s = ended_at(patience) + 0.01
    patience.note_arrival(arrived_s)
    assert patience.gap_s is not None and patience.delay_s is not None and patience.acceptance is not None
    gain = leaf * patience.acceptance
    rate = rate_of(patience)
    pays = gain * (1 - (1 - patience.acceptance) * rate * patience.delay_s) > rate * patience.gap_s
    until_s = hold(patience, arrived_s, leaf)
    assert (until_s > arrived_s) is pays
    if pays:
        assert until_s == pytest.approx(arrived_s + SLACK * patience.gap_s + SLACK_S)


@pytest.mark.parametrize("seed", range(50))
def test_a_pass_is_never_held_beyond_its_deadline(seed: int) -> None:
    rng = random.Random(seed)
    patience, now_s, emptied_s, arrived_s = Patience(), 0.0, 0.0, 0.0
    for _ in range(300):
        now_s += rng.expovariate(50)
        if rng.random() < 0.5:
            patience.note_arrival(now_s)
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


def test_the_rate_counts_the_time_between_passes() -> None:
    patience = Patience()
    patience.note_pass(began_s=1.0, ended_s=1.1, nodes=0, tokens=1, is_tree_empty=True)
    patience.note_pass(began_s=1.3, ended_s=1.4, nodes=0, tokens=1, is_tree_empty=True)
    assert patience.tokens_per_s == pytest.approx(10 + 0.2 * (1 / 0.3 - 10))
