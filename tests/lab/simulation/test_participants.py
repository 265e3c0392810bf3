"""Participants of a scenario, and whether their requests must finish."""

from dataclasses import replace

import pytest

from cosine_lab.simulation.participants import Participants
from cosine_lab.simulation.report import EventLog
from cosine_lab.simulation.scenario import Scenario
from cosine_lab.simulation.workload import workload_of

BASE = Scenario(verifiers=2, drafters=2, clients=2, requests=1, max_new_tokens=10, vocab_tokens=12, rtt_ms=20.0)


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
    assert Participants(scenario, workload_of(scenario), EventLog()).must_finish is must_finish
