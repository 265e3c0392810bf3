"""Bootstrap intervals: they hold the figure, narrow with more prompts, and follow from the seed."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cosine_lab.report.intervals import ratio_and_interval, speedup_fields

SECONDS = st.lists(st.floats(0.1, 100.0), min_size=1, max_size=20)


@given(SECONDS, st.integers(0, 9))
def test_a_ratio_lies_between_its_extremes_and_so_does_its_interval(seconds: list[float], seed: int) -> None:
    over = [took_s * (1.0 + number % 3) for number, took_s in enumerate(seconds)]
    found = ratio_and_interval(over, seconds, seed=seed)
    low, high = found["interval"]
    assert 1.0 - 1e-9 <= low <= high <= 3.0 + 1e-9
    assert 1.0 - 1e-9 <= found["ratio"] <= 3.0 + 1e-9
    assert found == ratio_and_interval(over, seconds, seed=seed)


def test_a_speedup_is_of_the_prompts_that_were_run_both_ways() -> None:
    fields = speedup_fields({1: 1.0, 3: 2.0}, {1: 2.0, 2: 50.0, 3: 2.0}, seed=0)
    assert fields["speedup"] == pytest.approx(4.0 / 3.0)
    assert fields["worst_prompt_speedup"] == 1.0
    low, high = fields["interval"]
    assert (low, high) == (1.0, 2.0)
