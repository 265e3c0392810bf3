"""Histograms of services count each value once."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cosine_node.passes.counts import Histogram


@given(st.lists(st.floats(0, 100)))
def test_a_histogram_has_each_value_once_below_its_bound(values: list[float]) -> None:
    histogram = Histogram((1.0, 10.0))
    for value in values:
        histogram.add(value)
    low, middle = sum(v <= 1 for v in values), sum(1 < v <= 10 for v in values)
    assert histogram.counts == [low, middle, len(values) - low - middle]
    assert histogram.total == pytest.approx(sum(values))
