"""The rivals' grids: every start lies on its grid, every option is one the strategy has."""

from dataclasses import asdict

import pytest

from cosine_lab.emulation.traces import TraceSet
from cosine_lab.experiments.entrants import (
    ENTRANTS,
    POLICIES,
    PUBLISHED,
    RIVALS,
    SHIPS,
    Entrant,
    RequestCase,
    entrant,
)
from cosine_lab.rivals.spin import SpinDirector
from cosine_lab.simulation.scenario import Scenario
from cosine_protocol.errors import UsageError

CASE = RequestCase(TraceSet.load_shipped().select(split="test", temperature=0.0)[0], (3, 1, 2, 4, 5, 6))
EVERYBODY = [pytest.param(one, id=one.name) for one in ENTRANTS.values()]


@pytest.mark.parametrize("one", EVERYBODY)
def test_a_start_lies_on_the_grid_and_is_allowed(one: Entrant) -> None:
    assert all(value in one.grid[name] for name, value in one.start.items())
    assert not one.outer or one.outer in one.grid
    assert one.allows(one.start)


@pytest.mark.parametrize("one", EVERYBODY)
def test_every_value_of_a_grid_makes_a_strategy(one: Entrant) -> None:
    for name, values in one.grid.items():
        for value in values:
            assert one.build(bytes(16), {**one.start, name: value}, CASE) is not None


@pytest.mark.parametrize("one", EVERYBODY)
def test_without_sampling_there_is_one_law(one: Entrant) -> None:
    assert "law" not in one.grid_at(0.0)
    assert one.grid_at(0.8) == one.grid


def test_the_published_law_is_for_chains_alone() -> None:
    for rival in RIVALS:
        trees = [{"width_nodes": 2}, {"n_parallel": 2}]
        options = [tree for tree in trees if tree.keys() <= rival.grid.keys()]
        assert "law" not in rival.grid or not any(
            rival.allows({**rival.start, **tree, "law": PUBLISHED}) for tree in options
        )


def test_all_rivals_have_as_many_verifiers_as_everybody_else() -> None:
    assert {rival.verifiers for rival in RIVALS} == {1}
    assert not ENTRANTS["dsi"].is_stepped
    assert ENTRANTS["dsi-2"].verifiers == 2


def test_an_unknown_entrant_is_named() -> None:
    with pytest.raises(UsageError, match="'sorcery'"):
        entrant("sorcery")


def test_a_policy_lacks_one_thing_or_all_that_is_the_verifier_s_own() -> None:
    ours, published, ships = (asdict(POLICIES[name]) for name in ("ours", PUBLISHED, SHIPS))
    assert not any(published[name] for name, is_on in ours.items() if is_on != published[name])
    assert len(asdict(POLICIES["ships-no-account"]).items() ^ ships.items()) == 2


def test_requests_share_a_director_where_that_is_chosen() -> None:
    scenario = Scenario(clients=9, drafters=4, verifiers=2)
    spin = ENTRANTS["spin"]
    assert spin.director(scenario, {"shares": False}) is None
    assert isinstance(spin.director(scenario, {"shares": True}), SpinDirector)
