"""The best composition of a pass fills what is free and weighs what is not."""

import pytest

from cosine_lab.experiments.crowd_bounds import best_pass
from cosine_node.engine.curve import CostCurve

CURVE = CostCurve(((1, 0.1), (8, 0.1), (16, 0.2)))


def test_the_best_pass_fills_what_is_free_and_weighs_what_is_not() -> None:
    gains = {0: 0.0, 1: 0.6, 3: 1.2, 7: 1.5}
    assert best_pass(CURVE, requests=2, gains=gains, budget_tokens=64).nodes == 3
    assert best_pass(CURVE, requests=8, gains=gains, budget_tokens=64).nodes == 0
    assert best_pass(CURVE, requests=2, gains=gains, budget_tokens=4).nodes == 1


def test_always_right_drafts_fill_the_budget() -> None:
    flat = CostCurve(((1, 0.1), (8, 0.1), (16, 0.15)))
    gains = {count: float(count) for count in (0, 1, 3, 7)}
    bound = best_pass(flat, requests=2, gains=gains, budget_tokens=16)
    assert (bound.nodes, bound.tokens) == (7, 16.0)
    assert bound.tokens_per_s == pytest.approx(16.0 / 0.15)
