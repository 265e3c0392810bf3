"""What a report counts as wrong, and how it compares two runs."""

from dataclasses import replace

import pytest

from cosine_lab.simulation.report import (
    NodeUse,
    RequestEnding,
    RequestResult,
    SimulationReport,
)
from cosine_protocol.records import Role


def result(number: int, ending: RequestEnding = RequestEnding.FINISHED, *, seconds: float = 2.0) -> RequestResult:
    return RequestResult(
        number=number,
        client=0,
        domain="code",
        strategy="cosine",
        ending=ending,
        error="" if ending is RequestEnding.FINISHED else "No verifier could finish the request.",
        is_match=True,
        began_s=1.0,
        seconds=seconds,
        first_s=0.1,
        tokens=10,
        rounds=5,
        drafted=8,
        accepted=5,
        near_ties=0,
        verifiers=1,
    )


VERIFIER = NodeUse(
    peer_id="v", role=Role.VERIFIER, domain="target", passes=5, rows=5, tokens_fed=20, busy_s=3.0, carried_bytes=400
)
REPORT = SimulationReport(
    scenario="test",
    strategy="cosine",
    seed=0,
    digest="",
    virtual_seconds=5.0,
    wall_seconds=0.0,
    results=(result(0), result(1, seconds=4.0)),
    nodes=(VERIFIER,),
    leaked=(),
    errors=(),
    fault_counts={},
    must_finish=True,
)


@pytest.mark.parametrize(
    ("changes", "violation"),
    [
        ({"results": (replace(result(3), is_match=False),)}, "request 3 is not the target's stream"),
        ({"results": (result(3, RequestEnding.HUNG),)}, "request 3 hung"),
        ({"results": (result(3, RequestEnding.FAILED),)}, "request 3: No verifier could finish the request."),
        ({"leaked": ("a task still runs",)}, "a task still runs"),
        ({"errors": ("a pass failed",)}, "a pass failed"),
    ],
)
def test_what_must_never_happen_is_a_violation(changes: dict[str, object], violation: str) -> None:
    report = replace(REPORT, **changes)  # type: ignore[arg-type]
    assert report.violations() == [violation] == report.as_json()["violations"]


def test_a_request_may_fail_where_nobody_was_left_to_finish_it_or_its_client_left() -> None:
    failed = replace(REPORT, results=(result(0, RequestEnding.FAILED),), must_finish=False)
    left = replace(REPORT, results=(result(0, RequestEnding.LEFT),))
    assert failed.violations() == left.violations() == []
