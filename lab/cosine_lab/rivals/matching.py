"""Assignment of requests to drafters of bounded capacity with the largest total value (SPIN, Chen et al. 2025)."""

import math
from collections.abc import Sequence


def assign(values: Sequence[Sequence[float]], capacities: Sequence[int]) -> tuple[int | None, ...]:
    """For every request the drafter it gets, or None; exact, in O(requests^2 (slots + requests)).

    `values[request][drafter]` is what the pair is worth, `capacities[drafter]` how many requests it takes. A pair
    worth less than nothing is not made, nor one worth -infinity or NaN.
    """
    slots = [drafter for drafter, places in enumerate(capacities) for _ in range(min(places, len(values)))]
    costs = [[_cost(row[drafter]) for drafter in slots] + [0.0] * len(values) for row in values]
    chosen = _cheapest(costs)
    return tuple(
        slots[column] if column < len(slots) and costs[request][column] < 0.0 else None
        for request, column in enumerate(chosen)
    )


def _cost(value: float) -> float:
    return -value if value > 0.0 else 0.0


def _cheapest(costs: Sequence[Sequence[float]]) -> list[int]:
    """The column of every row at the least total cost; no more rows than columns (Kuhn 1955, with potentials).

    Rows join one by one, each along the shortest augmenting path in reduced costs. Column `columns` is a stand-in
    that holds the row being added.
    """
    columns = len(costs[0]) if costs else 0
    row_potential = [0.0] * len(costs)
    column_potential = [0.0] * (columns + 1)
    holder: list[int | None] = [None] * (columns + 1)
    for row in range(len(costs)):
        holder[columns] = row
        _augment(costs, row_potential, column_potential, holder)
    chosen = [0] * len(costs)
    for column, held in enumerate(holder[:columns]):
        if held is not None:
            chosen[held] = column
    return chosen


def _augment(
    costs: Sequence[Sequence[float]],
    row_potential: list[float],
    column_potential: list[float],
    holder: list[int | None],
) -> None:
    """Find a free column for the row that the stand-in column holds, moving other rows where that is cheaper."""
    columns = len(holder) - 1
    distance = [math.inf] * columns
    before = [columns] * columns
    reached: list[int] = []
    column = columns
    while (row := holder[column]) is not None:
        reached.append(column)
        for other in range(columns):
            reduced = costs[row][other] - row_potential[row] - column_potential[other]
            if other not in reached and reduced < distance[other]:
                distance[other], before[other] = reduced, column
        free = min((other for other in range(columns) if other not in reached), key=distance.__getitem__)
        step = distance[free]
        for other in reached:
            held = holder[other]
            if held is not None:
                row_potential[held] += step
            column_potential[other] -= step
        for other in range(columns):
            if other not in reached:
                distance[other] -= step
        column = free
    while column != columns:
        holder[column] = holder[before[column]]
        column = before[column]
    holder[columns] = None
