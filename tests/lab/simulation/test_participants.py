"""Participants of a scenario: their identities, their links, and whether they must finish."""

from dataclasses import replace

import pytest

from cosine_lab.emulation.cities import rtt_s
from cosine_lab.emulation.virtual_loop import run_virtual
from cosine_lab.simulation.participants import Participants, identity_of
from cosine_lab.simulation.records import TARGET
from cosine_lab.simulation.report import EventLog
from cosine_lab.simulation.scenario import Scenario
from cosine_lab.simulation.workload import workload_of
from cosine_p2p.directory.vivaldi import estimated_rtt_s
from cosine_protocol.records import Role

BASE = Scenario(verifiers=2, drafters=2, clients=2, requests=1, max_new_tokens=10, vocab_tokens=12, rtt_ms=20.0)


async def participants_of(scenario: Scenario) -> Participants:
    return Participants(scenario, workload_of(scenario), EventLog())


@pytest.mark.parametrize(
    ("changes", "must_finish"),
    [
        ({}, True),
        ({"faults": "kill-verifier=1,kill-drafter=2"}, True),
        ({"faults": "kill-verifier=2"}, False),
        ({"max_requests": 1}, False),
        ({"timeout_s": 1.0}, False),
    ],
)
def test_requests_must_finish_if_one_verifier_can_do_it_in_time(
    changes: dict[str, object], must_finish: bool
) -> None:
    scenario = replace(BASE, **changes)  # type: ignore[arg-type]
    assert run_virtual(participants_of(scenario)).must_finish is must_finish


def test_on_a_map_everybody_is_in_a_city_and_nodes_find_their_places_before_anybody_asks() -> None:
    far = "singapore"
    scenario = replace(
        BASE, drafters=4, client_cities=("london",), verifier_cities=(far,), drafter_cities=("london", far)
    )

    async def run() -> dict[str, float]:
        participants = await participants_of(scenario)
        async with participants.swarm as swarm:
            await participants.start_nodes()
            directory = swarm.client_swarm(identity_of("client", 0)).directory
            verifier = (await directory.find(Role.VERIFIER, TARGET))[0].coordinate
            drafters = {record.peer_id: record.coordinate for record in await directory.find(Role.DRAFTER, TARGET)}
        estimates = {peer_id: estimated_rtt_s(place, verifier) for peer_id, place in drafters.items()}
        return {peer_id: rtt_s for peer_id, rtt_s in estimates.items() if rtt_s is not None}

    estimates = run_virtual(run())
    assert len(estimates) == 4
    for index, city in enumerate(("london", far, "london", far)):
        assert estimates[identity_of("drafter", index).peer_id] == pytest.approx(rtt_s(city, far), abs=0.02)
