from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cosine_engine.base import Row, RowResult
from cosine_engine.curve import CostCurve, break_even, measure_curve
from cosine_lab.emulation.scripted_engine import ScriptedEngine
from cosine_protocol.errors import UsageError


def test_lines_between_and_beyond_points() -> None:
    curve = CostCurve(((2, 1.0), (4, 3.0), (8, 4.0)))
    assert [curve.seconds(n) for n in (0, 1, 2, 3, 4, 6, 8, 12)] == [0, 1, 1, 2, 3, 3.5, 4, 5]


@pytest.mark.parametrize("points", [(), ((0, 1.0),), ((2, 1.0), (2, 2.0)), ((1, -1.0),)])
def test_meaningless_points_are_refused(points: tuple[tuple[int, float], ...]) -> None:
    with pytest.raises(UsageError):
        CostCurve(points)


class Stopwatch:
    """Time that passes only in an engine's passes."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


class TimedEngine(ScriptedEngine):
    """An engine with passes of a tenth of a second and a hundredth per token."""

    def __init__(self, stopwatch: Stopwatch) -> None:
        super().__init__(context_tokens=1000, pool_tokens=1000)
        self._stopwatch = stopwatch

    def forward(self, rows: Sequence[Row]) -> list[RowResult]:
        self._stopwatch.now_s += 0.1 + 0.01 * sum(len(row.tokens) for row in rows)
        return super().forward(rows)


def test_a_budget_bounds_the_time_and_keeps_the_ends_of_the_curve() -> None:
    whole = Stopwatch()
    curve = measure_curve(TimedEngine(whole), clock=whole)
    for budget_s in (0.0, 1.0, 3.0, 6.0):
        stopwatch = Stopwatch()
        engine = TimedEngine(stopwatch)
        found = measure_curve(engine, clock=stopwatch, budget_s=budget_s)
        assert (found.points[0][0], found.points[-1][0]) == (1, 64)
        for tokens, seconds in found.points:
            assert seconds == pytest.approx(curve.seconds(tokens))
        # At most one chunk of context too many, and two passes over the longest row.
        assert stopwatch.now_s <= budget_s + 0.42 + 2 * 0.74 < whole.now_s
        assert (engine.live_tokens, engine.open_sequences) == (0, 0)


def test_what_else_a_machine_does_moves_no_curve() -> None:
    class Disturbed(TimedEngine):
        """Two of three passes take up to twice as long."""

        passes = 0

        def forward(self, rows: Sequence[Row]) -> list[RowResult]:
            self.passes += 1
            self._stopwatch.now_s += (0.0, 0.08, 0.13)[self.passes % 3]
            return super().forward(rows)

    stopwatch, alone = Stopwatch(), Stopwatch()
    disturbed = measure_curve(Disturbed(stopwatch), clock=stopwatch)
    undisturbed = measure_curve(TimedEngine(alone), clock=alone)
    assert dict(disturbed.points) == pytest.approx(dict(undisturbed.points))


@pytest.mark.parametrize(
    ("points", "least"),
    [
        # The second token costs a quarter of the first, the fourth nothing more.
        (((1, 1.0), (2, 1.25), (4, 1.25)), 0.2),
        (((1, 1.0), (2, 1.5), (4, 2.5)), 0.5),
        # Four in a chain pay where two do not.
        (((1, 1.0), (2, 2.0), (4, 3.5)), 0.9),
        (((1, 1.0), (2, 2.0)), 1.0),
        (((1, 1.0), (16, 1.0)), 0.0),
    ],
)
def test_drafts_have_to_come_true_as_often_as_a_chain_of_them_costs(
    points: tuple[tuple[int, float], ...], least: float
) -> None:
    assert break_even(CostCurve(points)) == pytest.approx(least, abs=0.02)


@given(st.floats(0, 2), st.integers(0, 300))
def test_the_most_tokens_within_a_time_are_the_last_count_that_fits(within_s: float, limit: int) -> None:
    curve = CostCurve(((1, 0.1), (32, 0.1), (64, 0.2)))
    found = curve.most_tokens(within_s=within_s, limit=limit)
    assert found <= limit and curve.seconds(found) <= within_s
    assert found == limit or curve.seconds(found + 1) > within_s
