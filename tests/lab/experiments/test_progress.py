"""The progress of a long command is shown on a terminal at each cell, and elsewhere at intervals."""

import io

import pytest

from cosine_lab.experiments import progress
from cosine_lab.experiments.progress import CellProgress, ProgressLine


@pytest.mark.parametrize(("columns", "told"), [(0, [10]), (80, list(range(1, 13)))])
def test_a_log_is_not_filled(monkeypatch: pytest.MonkeyPatch, columns: int, told: list[int]) -> None:
    monkeypatch.setattr(progress, "columns_of", lambda _: columns)
    out, now_s = io.StringIO(), [0.0]
    clock = lambda: now_s[0]  # noqa: E731 - a clock that the test sets
    line = ProgressLine(CellProgress("request", 12, clock=clock), stream=out, clock=clock)
    for second in range(1, 13):
        now_s[0] = float(second)
        line.advance()
    line.end()
    lines = out.getvalue().splitlines()
    assert [int(one.split()[1]) for one in lines] == told
    assert lines[told.index(10)] == "request 10 of 12, about 2 s left ..."
