"""The cost curve of a device under load."""

import random
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from cosine_engine.curve import CostCurve
from cosine_node.passes.learned_curve import LearnedCurve

IDLE = CostCurve(((1, 0.036), (2, 0.055), (4, 0.062), (8, 0.067), (16, 0.120)))


def run(learned: LearnedCurve, device: CostCurve, lengths: list[int], *, noise: float = 0.0) -> None:
    chance = random.Random(0)
    for tokens in lengths:
        learned.note_pass(tokens, elapsed_s=device.seconds(tokens) * (1 + noise * chance.uniform(-1, 1)))


def test_long_passes_under_load_are_forgotten_by_short_ones_without() -> None:
    learned = LearnedCurve(IDLE)
    loaded = CostCurve(tuple((tokens, 5 * seconds) for tokens, seconds in IDLE.points))
    run(learned, loaded, [8, 4, 8, 2] * 20)
    assert learned.curve.seconds(8) > 4 * IDLE.seconds(8)
    run(learned, IDLE, [1] * 40)
    assert learned.curve.seconds(8) < 1.2 * IDLE.seconds(8)


@given(st.lists(st.tuples(st.integers(1, 64), st.floats(0.0, 100.0)), max_size=60))
def test_more_tokens_never_cost_less(passes: list[tuple[int, float]]) -> None:
    learned = LearnedCurve(IDLE)
    for tokens, elapsed_s in passes:
        learned.note_pass(tokens, elapsed_s=elapsed_s)
    seconds = [learned.curve.seconds(tokens) for tokens in range(1, 65)]
    assert all(0 < one <= other for one, other in pairwise(seconds))
