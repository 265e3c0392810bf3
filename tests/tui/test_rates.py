"""How fast something grew lately."""

import pytest

from cosine_tui.rates import Rate


def test_a_rate_looks_back_over_its_window_only() -> None:
    rate = Rate(began_s=0.0, window_s=2.0)
    assert rate.per_s == 0.0
    for second in range(1, 11):
        rate.note(10.0 * second, float(second))
    assert rate.per_s == pytest.approx(10.0)
    for second in range(11, 14):
        rate.note(100.0, float(second))
    assert rate.per_s == 0.0


def test_before_the_window_is_full_a_rate_is_since_the_start() -> None:
    rate = Rate(began_s=4.0, window_s=3.0)
    rate.note(6.0, 6.0)
    assert rate.per_s == pytest.approx(3.0)
