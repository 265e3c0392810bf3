"""Bootstrap intervals: they hold the figure, narrow with more prompts, and follow from the seed."""

from hypothesis import given
from hypothesis import strategies as st

from cosine_lab.report.intervals import ratio_and_interval

SECONDS = st.lists(st.floats(0.1, 100.0), min_size=1, max_size=20)


@given(SECONDS, st.integers(0, 9))
def test_a_ratio_lies_between_its_extremes_and_so_does_its_interval(seconds: list[float], seed: int) -> None:
    over = [took_s * (1.0 + number % 3) for number, took_s in enumerate(seconds)]
    found = ratio_and_interval(over, seconds, seed=seed)
    low, high = found["interval"]
    assert 1.0 - 1e-9 <= low <= high <= 3.0 + 1e-9
    assert 1.0 - 1e-9 <= found["ratio"] <= 3.0 + 1e-9
    assert found == ratio_and_interval(over, seconds, seed=seed)
