"""Passes take several threads where these are faster, and one elsewhere."""

import pytest

from cosine_engine.compiled.layers import FIRST_PASSES, TRIED_EVERY, ThreadTrial


def shares(trial: ThreadTrial, seconds: dict[int, float], *, tokens: int, passes: int) -> float:
    """Run passes that take `seconds` by their threads; return the share of those in one thread."""
    alone = 0
    for _ in range(passes):
        threads = trial.threads(tokens)
        alone += threads == 1
        trial.note(tokens, threads, elapsed_s=seconds[threads])
    return alone / passes


@pytest.mark.parametrize(("seconds", "least", "most"), [({4: 1.0, 1: 2.0}, 0, 0.05), ({4: 2.0, 1: 1.0}, 0.95, 1)])
def test_the_faster_way_is_taken(seconds: dict[int, float], least: float, most: float) -> None:
    trial = ThreadTrial(4)
    shares(trial, seconds, tokens=3, passes=FIRST_PASSES)
    assert least <= shares(trial, seconds, tokens=3, passes=10 * TRIED_EVERY) <= most


def test_lengths_are_apart_and_a_change_is_noticed() -> None:
    trial = ThreadTrial(2)
    shares(trial, {2: 2.0, 1: 1.0}, tokens=1, passes=100)
    shares(trial, {2: 1.0, 1: 2.0}, tokens=8, passes=100)
    assert shares(trial, {2: 2.0, 1: 1.0}, tokens=1, passes=TRIED_EVERY) > 0.9
    assert shares(trial, {2: 1.0, 1: 2.0}, tokens=8, passes=TRIED_EVERY) < 0.1
    # A neighbour leaves, and another comes.
    shares(trial, {2: 0.6, 1: 1.0}, tokens=1, passes=20 * TRIED_EVERY)
    shares(trial, {2: 3.0, 1: 2.0}, tokens=8, passes=20)
    assert shares(trial, {2: 0.6, 1: 1.0}, tokens=1, passes=TRIED_EVERY) < 0.1
    assert shares(trial, {2: 3.0, 1: 2.0}, tokens=8, passes=TRIED_EVERY) > 0.9


def test_one_thread_needs_no_trial() -> None:
    assert ThreadTrial(1).threads(5) == 1
