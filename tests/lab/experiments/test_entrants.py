"""The rivals' grids: every start lies on its grid, every option is one the strategy has."""

import pytest

from cosine_lab.emulation.traces import TraceSet
from cosine_lab.experiments.entrants import RIVALS, Entrant, RequestCase

CASE = RequestCase(TraceSet.load_shipped().select(split="test", temperature=0.0)[0], (3, 1, 2, 4, 5, 6))


@pytest.mark.parametrize("one", RIVALS, ids=lambda one: one.name)
def test_a_start_lies_on_the_grid_and_every_value_of_it_makes_a_strategy(one: Entrant) -> None:
    assert all(value in one.grid[name] for name, value in one.start.items())
    assert not one.outer or one.outer in one.grid
    assert one.allows(one.start)
    for name, values in one.grid.items():
        for value in values:
            assert one.build(bytes(16), {**one.start, name: value}, CASE) is not None
    # Without sampling there is one law.
    assert "law" not in one.grid_at(0.0) and one.grid_at(0.8) == one.grid
