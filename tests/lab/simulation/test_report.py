"""What a report counts as wrong, and how it compares two runs."""

from dataclasses import replace

import pytest

from cosine_lab.simulation.report import RequestEnding, RequestResult
from cosine_lab.simulation.running import run_scenario
from cosine_lab.simulation.scenario import Scenario

REPORT = run_scenario(Scenario(verifiers=1, drafters=0, clients=1, requests=1, max_new_tokens=2, vocab_tokens=12))


def result(ending: RequestEnding) -> RequestResult:
    error = "No verifier could finish the request." if ending is RequestEnding.FAILED else ""
    return replace(REPORT.results[0], number=3, ending=ending, error=error)


WRONG = replace(result(RequestEnding.FINISHED), is_match=False)


@pytest.mark.parametrize(
    ("changes", "violation"),
    [
        (
            {"results": (replace(result(RequestEnding.FINISHED), is_match=False),)},
            "request 3 is not the target's stream",
        ),
        ({"results": (result(RequestEnding.HUNG),)}, "request 3 hung"),
        ({"results": (result(RequestEnding.FAILED),)}, "request 3: No verifier could finish the request."),
        ({"leaked": ("a task still runs",)}, "a task still runs"),
        ({"errors": ("a pass failed",)}, "a pass failed"),
        ({"results": (result(RequestEnding.FAILED),), "must_finish": False}, None),
        ({"results": (result(RequestEnding.LEFT),)}, None),
    ],
)
def test_what_must_never_happen_is_a_violation(changes: dict[str, object], violation: str | None) -> None:
    report = replace(REPORT, **changes)  # type: ignore[arg-type]
    assert report.violations() == [one for one in (violation,) if one] == report.as_json()["violations"]
