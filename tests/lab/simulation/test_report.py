"""The violations in a report."""

from dataclasses import replace
from typing import Any

import pytest

from cosine_lab.simulation.report import RequestEnding, SimulationReport
from cosine_lab.simulation.running import run_scenario
from cosine_lab.simulation.scenario import Scenario

FAILED = {"ending": RequestEnding.FAILED, "error": "No verifier could finish the request."}


@pytest.fixture(scope="module")
def sound() -> SimulationReport:
    return run_scenario(Scenario(verifiers=1, drafters=0, clients=1, requests=1, max_new_tokens=2, vocab_tokens=12))


@pytest.mark.parametrize(
    ("request_changes", "changes", "violations"),
    [
        ({}, {}, []),
        ({"is_match": False}, {}, ["request 3 is not the target's stream"]),
        ({"ending": RequestEnding.HUNG}, {}, ["request 3 hung"]),
        (FAILED, {}, ["request 3: No verifier could finish the request."]),
        (FAILED, {"must_finish": False}, []),
        ({"ending": RequestEnding.LEFT}, {}, []),
        ({}, {"leaked": ("a task still runs",)}, ["a task still runs"]),
        ({}, {"errors": ("a pass failed",)}, ["a pass failed"]),
    ],
)
def test_violations(
    sound: SimulationReport, request_changes: dict[str, Any], changes: dict[str, Any], violations: list[str]
) -> None:
    request = replace(sound.results[0], number=3, **request_changes)
    report = replace(sound, results=(request,), **changes)
    assert report.violations() == violations == report.as_json()["violations"]
