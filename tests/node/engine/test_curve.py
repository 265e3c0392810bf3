from collections.abc import Callable, Sequence
from itertools import count

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cosine_lab.emulation.scripted_engine import ScriptedEngine
from cosine_node.engine.base import PREFIX, OutOfMemory, Row, RowResult
from cosine_node.engine.curve import MEASURED_TOKENS, CostCurve, break_even, measure_curve, rising
from cosine_protocol.errors import UsageError


def _ticking(step_s: float) -> Callable[[], float]:
    ticks = count()
    return lambda: next(ticks) * step_s


def test_lines_between_and_beyond_points() -> None:
    curve = CostCurve(((2, 1.0), (4, 3.0), (8, 4.0)))
    assert [curve.seconds(n) for n in (0, 1, 2, 3, 4, 6, 8, 12)] == [0, 1, 1, 2, 3, 3.5, 4, 5]


def test_one_point_is_a_constant() -> None:
    assert CostCurve(((4, 2.0),)).seconds(100) == 2.0


@pytest.mark.parametrize("points", [(), ((0, 1.0),), ((2, 1.0), (2, 2.0)), ((1, -1.0),)])
def test_meaningless_points_are_refused(points: tuple[tuple[int, float], ...]) -> None:
    with pytest.raises(UsageError):
        CostCurve(points)


def test_a_length_costs_no_more_than_a_longer_one() -> None:
    assert rising([(1, 2.0), (2, 9.0), (3, 4.0), (4, 3.0)]) == ((1, 2.0), (2, 3.0), (3, 3.0), (4, 3.0))


def test_measuring_leaves_the_engine_as_it_was() -> None:
    engine = ScriptedEngine(context_tokens=100, pool_tokens=256)
    curve = measure_curve(engine, clock=_ticking(0.5), context_tokens=60, repeats=2)
    assert curve.points == tuple((n, 0.5) for n in (1, 2, 4, 8, 16, 32))
    assert engine.passes == 2 + 6 * 3
    assert (engine.live_tokens, engine.open_sequences, engine.free_tokens) == (0, 0, 256)


def test_drafts_are_measured_as_trees_and_prompts_as_chains() -> None:
    rows: list[Row] = []

    class Noting(ScriptedEngine):
        def forward(self, passed: Sequence[Row]) -> list[RowResult]:
            rows.extend(passed)
            return super().forward(passed)

    measure_curve(Noting(context_tokens=400, pool_tokens=512), clock=_ticking(0.001), prompt_tokens=(128,))
    trees = {len(row.tokens): row for row in rows if not row.scored_from}
    assert sorted(trees) == list(MEASURED_TOKENS)
    assert trees[8].parents == (PREFIX, 0, 0, 1, 1, 2, 2, 3)
    assert {len(row.tokens) for row in rows if row.scored_from and row.is_chain} >= {128}


class Stopwatch:
    """Time that passes only in an engine's passes."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


class TimedEngine(ScriptedEngine):
    """A pass takes a tenth of a second and a hundredth for each token."""

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


def test_where_time_is_short_the_usual_passes_are_taken_again_before_long_ones() -> None:
    taken: list[int] = []

    class Noting(TimedEngine):
        def forward(self, rows: Sequence[Row]) -> list[RowResult]:
            taken.append(sum(len(row.tokens) for row in rows))
            return super().forward(rows)

    stopwatch = Stopwatch()
    # The context takes 0.4 s, every length twice 3.9 s, four rounds of the usual ones 3.2 s.
    measure_curve(Noting(stopwatch), clock=stopwatch, context_tokens=32, budget_s=8.0)
    counts = {count: taken.count(count) for count in MEASURED_TOKENS}
    assert counts == {1: 6, 2: 6, 4: 6, 8: 6, 16: 6, 32: 3, 64: 3}


def test_longer_prompts_are_measured_until_one_takes_long() -> None:
    class Fast(TimedEngine):
        """A pass takes 50 ms and 0.4 ms for each token."""

        def forward(self, rows: Sequence[Row]) -> list[RowResult]:
            assert all(len(row.tokens) <= 64 or row.scored_from == len(row.tokens) - 1 for row in rows)
            results = ScriptedEngine.forward(self, rows)
            self._stopwatch.now_s += 0.05 + 0.0004 * sum(len(row.tokens) for row in rows)
            return results

    stopwatch = Stopwatch()
    curve = measure_curve(Fast(stopwatch), clock=stopwatch, context_tokens=60, prompt_tokens=(128, 256, 512, 900))
    # 512 tokens take 0.255 s, so 900 are not tried.
    assert [tokens for tokens, _ in curve.points] == [1, 2, 4, 8, 16, 32, 64, 128, 256, 512]
    assert curve.seconds(512) == pytest.approx(0.05 + 0.0004 * 512)
    short = measure_curve(Fast(stopwatch), clock=stopwatch, prompt_tokens=(128, 900))
    assert short.points[-1][0] == 128


def test_a_prompt_that_finds_no_memory_ends_the_curve_before_it() -> None:
    class Small(TimedEngine):
        def forward(self, rows: Sequence[Row]) -> list[RowResult]:
            if sum(len(row.tokens) for row in rows) > 200:
                raise OutOfMemory("no memory")
            self._stopwatch.now_s += 0.01
            return ScriptedEngine.forward(self, rows)

    stopwatch = Stopwatch()
    engine = Small(stopwatch)
    curve = measure_curve(engine, clock=stopwatch, prompt_tokens=(128, 256, 512))
    assert curve.points[-1][0] == 128
    assert (engine.live_tokens, engine.open_sequences) == (0, 0)


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


def test_beside_other_drafts_those_of_a_chain_have_to_bring_more_tokens_a_second() -> None:
    flat = CostCurve(((1, 1.0), (16, 1.0)))
    rate = break_even(flat, beside=2.0)
    # As many as bring twice the tokens of plain decoding: 1 + r + r^2 + ... = 2.
    assert rate == pytest.approx(0.5, abs=0.02)
    assert break_even(flat, beside=3.0) > rate


@given(st.floats(0, 2), st.integers(0, 300))
def test_the_most_tokens_within_a_time_are_the_last_count_that_fits(within_s: float, limit: int) -> None:
    curve = CostCurve(((1, 0.1), (32, 0.1), (64, 0.2)))
    found = curve.most_tokens(within_s=within_s, limit=limit)
    assert found <= limit and curve.seconds(found) <= within_s
    assert found == limit or curve.seconds(found + 1) > within_s
