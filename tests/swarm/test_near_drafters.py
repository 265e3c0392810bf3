"""On a map of cities, the drafters that help are those whose drafts have the shortest way."""

from typing import Any

import pytest

from cosine_lab.simulation.participants import identity_of
from cosine_lab.simulation.running import run_scenario
from cosine_lab.simulation.scenario import Scenario
from cosine_p2p.trust.mandates import Coordination
from tests.thoroughness import quick_first

HERE, THERE = "london", "singapore"
ON_A_MAP: dict[str, Any] = {
    "drafters": 6,
    "max_drafters": 3,
    "domains": ("code",),
    "fidelities": (0.7,),
    "requests": 3,
    "max_new_tokens": 24,
    "client_cities": (HERE,),
    "verifier_cities": (THERE,),
    "drafter_cities": (HERE, THERE),
    "settle_s": 600.0,
}


def helpers(scenario: Scenario) -> set[str]:
    """The cities of the drafters that drafted; every text is the target's own."""
    report = run_scenario(scenario)
    assert report.violations() == []
    passes = {use.peer_id: use.passes for use in report.nodes}
    cities = scenario.drafter_cities
    return {
        cities[index % len(cities)]
        for index in range(scenario.drafters)
        if passes[identity_of("drafter", index).peer_id]
    }


@pytest.mark.parametrize("coordination", quick_first([Coordination.AUTO, Coordination.VERIFIER]))
def test_a_verifier_far_away_gets_the_drafts_of_its_neighbours(coordination: Coordination) -> None:
    assert helpers(Scenario(coordination=coordination, **ON_A_MAP)) == {THERE}


def test_without_coordinates_it_does_not_from_the_beginning() -> None:
    """In texts long enough for those far away to be connected."""
    unsettled = ON_A_MAP | {"settle_s": 0.0, "max_new_tokens": 96}
    assert helpers(Scenario(coordination=Coordination.VERIFIER, **unsettled)) == {HERE, THERE}
