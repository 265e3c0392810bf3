"""The rivals' grids: every start lies on its grid, every option is one the strategy has."""

import pytest

from cosine_node.bench.entrants import ENTRANTS, PUBLISHED, RIVALS, Case, Entrant, entrant
from cosine_node.simulation.traces import TraceSet
from cosine_protocol.errors import UsageError

CASE = Case(TraceSet.load_shipped().select(split="test", temperature=0.0)[0], (3, 1, 2, 4, 5, 6))
EVERYBODY = [pytest.param(one, id=one.name) for one in ENTRANTS.values()]


@pytest.mark.parametrize("one", EVERYBODY)
def test_a_start_lies_on_the_grid_and_is_allowed(one: Entrant) -> None:
    assert all(value in one.grid[name] for name, value in one.start.items())
    assert one.allows(one.start)


@pytest.mark.parametrize("one", EVERYBODY)
def test_every_value_of_a_grid_makes_a_strategy(one: Entrant) -> None:
    for name, values in one.grid.items():
        for value in values:
            assert one.build(bytes(16), {**one.start, name: value}, CASE) is not None


@pytest.mark.parametrize("one", EVERYBODY)
def test_without_sampling_there_is_one_law(one: Entrant) -> None:
    assert "law" not in one.choices_at(0.0)
    assert one.choices_at(0.8) == one.grid


def test_the_published_law_is_for_chains_alone() -> None:
    for rival in RIVALS:
        trees = [{"width_nodes": 2}, {"n_parallel": 2}]
        options = [tree for tree in trees if tree.keys() <= rival.grid.keys()]
        assert "law" not in rival.grid or not any(
            rival.allows({**rival.start, **tree, "law": PUBLISHED}) for tree in options
        )


def test_all_rivals_have_as_many_verifiers_as_everybody_else() -> None:
    assert {rival.verifiers for rival in RIVALS} == {1}
    assert ENTRANTS["dsi-2"].verifiers == 2


def test_an_unknown_entrant_is_named() -> None:
    with pytest.raises(UsageError, match="'sorcery'"):
        entrant("sorcery")
