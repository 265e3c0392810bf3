"""The curve of a request's speed: equal intervals, bounded memory, nothing lost."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cosine_tui.speed_history import SpeedHistory


def test_an_even_speed_is_an_even_curve() -> None:
    history = SpeedHistory(began_s=10.0, interval_s=0.5)
    for step in range(1, 17):
        history.note(2.0 * step, 10.0 + step / 8)
    speeds = history.speeds
    assert speeds.interval_s == 0.5 and speeds.per_s == pytest.approx((16.0,) * 4)


def test_an_interval_counts_once_it_is_over() -> None:
    history = SpeedHistory(began_s=0.0, interval_s=1.0)
    history.note(5.0, 0.9)
    assert not history.speeds.per_s
    history.note(5.0, 1.0)
    assert history.speeds.per_s == (5.0,)


def test_between_two_counts_it_is_taken_to_have_grown_evenly() -> None:
    history = SpeedHistory(began_s=0.0, interval_s=1.0)
    history.note(40.0, 4.0)
    assert history.speeds.per_s == pytest.approx((10.0,) * 4)


def test_a_long_request_has_longer_intervals_and_not_more_of_them() -> None:
    history = SpeedHistory(began_s=0.0, interval_s=1.0, limit=8)
    for second in range(1, 65):
        history.note(3.0 * second, float(second))
    speeds = history.speeds
    assert len(speeds.per_s) <= 8 and speeds.interval_s == 8.0 and speeds.per_s == pytest.approx((3.0,) * 8)


@given(st.lists(st.tuples(st.floats(0.0, 3.0), st.integers(0, 9)), max_size=60))
def test_the_curve_holds_every_token_of_the_intervals_that_are_over(steps: list[tuple[float, int]]) -> None:
    history = SpeedHistory(began_s=0.0, interval_s=0.5, limit=16)
    now_s, tokens = 0.0, 0
    for wait_s, more in steps:
        now_s, tokens = now_s + wait_s, tokens + more
        history.note(tokens, now_s)
    speeds = history.speeds
    assert sum(speeds.per_s) * speeds.interval_s <= tokens + 1e-6
    assert all(per_s >= 0 for per_s in speeds.per_s) and len(speeds.per_s) <= 16
