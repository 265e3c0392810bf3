"""The matrix counts what the traces say."""

from typing import Any

import pytest

from cosine_node.bench.acceptance import AcceptanceOptions, run
from cosine_node.simulation.traces import TraceSet


def silent(sentence: str) -> None:
    del sentence


@pytest.fixture(scope="module")
def result() -> dict[str, object]:
    return run(AcceptanceOptions.quick(), say=silent)


def rows_of(result: dict[str, object]) -> list[dict[str, Any]]:
    rows = result["rows"]
    assert isinstance(rows, list)
    return rows


def test_there_is_a_row_for_every_drafter_domain_and_temperature(result: dict[str, object]) -> None:
    rows = rows_of(result)
    assert len({(row["temperature"], row["domain"], row["drafter"]) for row in rows}) == len(rows) == 2 * 5 * 6


def test_more_candidates_hit_more_often(result: dict[str, object]) -> None:
    assert all(0 < row["first_choice"] <= row["among_4"] <= row["among_8"] <= 1 for row in rows_of(result))


def test_a_share_is_counted_token_by_token(result: dict[str, object]) -> None:
    traces = TraceSet.load_shipped().select(split="test", temperature=0.8, domains=("math",))[:2]
    hits = [
        int(token) == said[0]
        for trace in traces
        for token, said in zip(trace.stream, trace.drafters["draft-math"].candidate_tokens.tolist(), strict=True)
    ]
    [row] = [
        row
        for row in rows_of(result)
        if (row["temperature"], row["domain"], row["drafter"]) == (0.8, "math", "draft-math")
    ]
    assert row["first_choice"] == sum(hits) / len(hits)
    assert (row["tokens"], row["prompts"]) == (len(hits), 2)


def test_the_findings_name_the_best_drafter_of_each_domain(result: dict[str, object]) -> None:
    findings = result["findings"]
    assert isinstance(findings, dict)
    assert len(findings["by_domain"]) == findings["domains"] == 10
    for entry in findings["by_domain"]:
        assert entry["worst"] <= entry["generalist"] <= entry["first_choice"]
        assert entry["is_expert"] == (entry["best"] == f"draft-{entry['domain']}")


def test_the_same_options_give_the_same_result(result: dict[str, object]) -> None:
    assert run(AcceptanceOptions.quick(), say=silent) == result
