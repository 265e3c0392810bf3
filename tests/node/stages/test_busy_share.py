"""The share of time that a stage was busy."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cosine_node.stages.inbox import WINDOW_S, BusyShare


def test_the_share_is_that_of_the_last_seconds() -> None:
    busy = BusyShare(now_s=100.0)
    assert busy.share(100.0) == 0.0
    busy.note(began_s=102.0, ended_s=103.0)
    assert busy.share(104.0) == pytest.approx(0.25)
    assert busy.share(100.0 + WINDOW_S) == pytest.approx(1 / WINDOW_S)
    # Half of the pass lies before the window.
    assert busy.share(102.5 + WINDOW_S) == pytest.approx(0.5 / WINDOW_S)
    assert busy.share(103.0 + WINDOW_S) == 0.0
    assert busy.total_s == pytest.approx(1.0)


@given(st.lists(st.tuples(st.floats(0.0, 10.0), st.floats(0.0, 10.0)), max_size=30))
def test_the_share_is_one_of_the_time_that_has_passed(steps: list[tuple[float, float]]) -> None:
    now_s = 5.0
    busy = BusyShare(now_s=now_s)
    work = []
    for pause_s, pass_s in steps:
        began_s = now_s + pause_s
        now_s = began_s + pass_s
        busy.note(began_s=began_s, ended_s=now_s)
        work.append((began_s, now_s))
    first_s = max(5.0, now_s - WINDOW_S)
    spent_s = sum(max(0.0, ended_s - max(began_s, first_s)) for began_s, ended_s in work)
    assert busy.share(now_s) == pytest.approx(spent_s / (now_s - first_s) if now_s > first_s else 0.0, abs=1e-9)
