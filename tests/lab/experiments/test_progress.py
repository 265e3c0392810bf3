"""How far a long command is told on a terminal at each cell, and elsewhere now and then."""

import io
from collections.abc import Iterator

import pytest

from cosine_lab.experiments import progress
from cosine_lab.experiments.progress import CellProgress, ProgressLine


def at(*times_s: float) -> Iterator[float]:
    yield from times_s


def test_what_is_left_takes_as_long_a_cell_as_what_is_done() -> None:
    times_s = at(0.0, 10.0, 40.0, 60.0)
    cells = CellProgress("seed", 3, clock=lambda: next(times_s))
    assert [cells.advance() for _ in range(3)] == [
        "seed 1 of 3, about 20 s left",
        "seed 2 of 3, about 20 s left",
        "seed 3 of 3, the last",
    ]


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
    assert [int(one.split()[1]) for one in out.getvalue().splitlines()] == told
