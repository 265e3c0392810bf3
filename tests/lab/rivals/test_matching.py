"""The assignment is exact: no other one is worth more."""

import math
from collections import Counter
from collections.abc import Sequence
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cosine_lab.rivals.matching import assign


def worth(values: Sequence[Sequence[float]], chosen: Sequence[int | None]) -> float:
    return sum(row[drafter] for row, drafter in zip(values, chosen, strict=True) if drafter is not None)


def fits(chosen: Sequence[int | None], capacities: Sequence[int]) -> bool:
    taken = Counter(drafter for drafter in chosen if drafter is not None)
    return all(taken[drafter] <= places for drafter, places in enumerate(capacities))


def best_worth(values: Sequence[Sequence[float]], capacities: Sequence[int]) -> float:
    options = [None, *range(len(capacities))]
    every = product(options, repeat=len(values))
    return max(worth(values, chosen) for chosen in every if fits(chosen, capacities))


@st.composite
def problems(draw: st.DrawFn) -> tuple[list[list[float]], list[int]]:
    drafters = draw(st.integers(0, 3))
    value = st.one_of(st.integers(-3, 6).map(float), st.floats(-10, 10))
    row = st.lists(value, min_size=drafters, max_size=drafters)
    values = draw(st.lists(row, max_size=4))
    return values, draw(st.lists(st.integers(0, 3), min_size=drafters, max_size=drafters))


@given(problems())
def test_no_assignment_is_worth_more(problem: tuple[list[list[float]], list[int]]) -> None:
    values, capacities = problem
    chosen = assign(values, capacities)
    assert len(chosen) == len(values)
    assert fits(chosen, capacities)
    assert worth(values, chosen) == pytest.approx(best_worth(values, capacities), abs=1e-9)


def test_the_second_best_drafter_is_taken_where_the_best_is_needed_more() -> None:
    assert assign([[5.0, 4.0], [5.0, 1.0]], [1, 1]) == (1, 0)
    assert assign([[5.0, 4.0], [5.0, 1.0]], [2, 1]) == (0, 0)


def test_a_worthless_pair_is_not_made() -> None:
    assert assign([[0.0, -1.0], [-math.inf, math.nan]], [1, 1]) == (None, None)


def test_nothing_to_assign() -> None:
    assert assign([], [1, 2]) == ()
    assert assign([[], []], []) == (None, None)


def test_a_larger_problem_keeps_its_capacities() -> None:
    values = [[float((3 * request + 5 * drafter) % 7 + 1) for drafter in range(5)] for request in range(30)]
    chosen = assign(values, [6] * 5)
    assert None not in chosen
    assert fits(chosen, [6] * 5)
