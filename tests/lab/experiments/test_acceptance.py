"""The matrix counts what the traces say."""

from typing import Any

import pytest

from cosine_lab.simulation.traces import TraceSet
from tests.lab.experiments.quick import quick_result


@pytest.fixture(scope="module")
def result() -> dict[str, Any]:
    return quick_result("acceptance")


def test_there_is_a_row_for_every_drafter_domain_and_temperature(result: dict[str, Any]) -> None:
    rows = result["rows"]
    assert len({(row["temperature"], row["domain"], row["drafter"]) for row in rows}) == len(rows) == 2 * 5 * 6
    assert all(0 < row["first_choice"] <= row["among_4"] <= row["among_8"] <= 1 for row in rows)


def test_an_acceptance_rate_is_counted_token_by_token(result: dict[str, Any]) -> None:
    traces = TraceSet.load_shipped().select(split="test", temperature=0.8, domains=("math",))[:2]
    hits = [
        int(token) == candidates[0]
        for trace in traces
        for token, candidates in zip(
            trace.stream, trace.drafters["draft-math"].candidate_tokens.tolist(), strict=True
        )
    ]
    place = (0.8, "math", "draft-math")
    [row] = [row for row in result["rows"] if (row["temperature"], row["domain"], row["drafter"]) == place]
    assert row["first_choice"] == sum(hits) / len(hits)
    assert (row["tokens"], row["prompts"]) == (len(hits), 2)


def test_the_findings_name_the_best_drafter_of_each_domain(result: dict[str, Any]) -> None:
    findings = result["findings"]
    assert len(findings["by_domain"]) == findings["domains"] == 10
    for entry in findings["by_domain"]:
        assert entry["worst"] <= entry["generalist"] <= entry["first_choice"]
        assert entry["is_expert"] == (entry["best"] == f"draft-{entry['domain']}")
