"""The scale study in its smallest form: what is counted, and what must hold at any size."""

import json
from typing import Any

import pytest

from cosine_lab.experiments.scale import ScaleOptions, findings_of, run, run_size
from cosine_lab.experiments.scale_decisions import commit_times_us, decision_rows
from cosine_p2p.strategy.registry import STRATEGIES
from cosine_protocol.limits import MAX_CELL_OWNERS

OPTIONS = ScaleOptions.quick()
WALL_CLOCK = ("_us", "wall_s", "cpu_s", "peak_mb")


@pytest.fixture(scope="module")
def rows() -> list[dict[str, Any]]:
    return [run_size(OPTIONS.scenario(nodes)) for nodes in OPTIONS.nodes]


def exact(row: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in row.items() if not name.endswith(WALL_CLOCK)}


def test_every_request_ends_with_the_targets_own_text(rows: list[dict[str, Any]]) -> None:
    for row in rows:
        assert (row["failed"], row["mismatches"], row["errors"]) == (0, 0, [])
        assert row["finished"] == row["clients"]
        assert row["tokens"] == row["clients"] * OPTIONS.max_new_tokens


def test_every_node_is_live_and_announced(rows: list[dict[str, Any]]) -> None:
    for nodes, row in zip(OPTIONS.nodes, rows, strict=True):
        assert row["nodes"] == nodes
        # Those that come late offer theirs to the full first cell too.
        full = row["records_per_key_max"] == MAX_CELL_OWNERS
        offered = 1 + (nodes - MAX_CELL_OWNERS) / nodes if full else 1
        assert 1 <= row["joining_node_records_written"] <= offered
        assert row["records_per_key_mean"] * row["keys"] == pytest.approx(nodes)


def test_no_key_holds_more_records_than_a_cell(rows: list[dict[str, Any]]) -> None:
    assert [row["records_per_key_max"] for row in rows] == [19, MAX_CELL_OWNERS]


def test_clients_read_and_never_write(rows: list[dict[str, Any]]) -> None:
    for row in rows:
        assert row["client_cells_read"] >= 2
        assert row["client_records_read"] > 0 < row["client_bytes_read"]
        assert row["client_records_written"] == 0


def test_the_drafters_are_used(rows: list[dict[str, Any]]) -> None:
    assert all(row["accepted_per_round"] > 0 for row in rows)


def test_a_row_can_be_repeated(rows: list[dict[str, Any]]) -> None:
    again = run_size(OPTIONS.scenario(OPTIONS.nodes[0]))
    assert exact(again) == exact(rows[0])
    assert again.keys() == rows[0].keys()


def test_findings_are_computed_from_the_rows(rows: list[dict[str, Any]]) -> None:
    grown = dict(rows[1]) | {
        "nodes": 10 * rows[0]["nodes"],
        "client_bytes_read": 100 * rows[0]["client_bytes_read"],
    }
    decision = {"candidates": 10, "rank_verifiers_us": 1.5, "pick_drafters_us": 2.0}
    found = findings_of([rows[0], grown], [decision])
    assert found["client_bytes_read_exponent"] == pytest.approx(2.0)
    assert found["choosing_us"] == 3.5
    assert found["all_finished"]


def test_decisions_are_timed_for_each_number_of_candidates() -> None:
    decisions = decision_rows(STRATEGIES["cosine"], candidates=(10, 20), repeats=3)
    assert [row["candidates"] for row in decisions] == [10, 20]
    assert all(value > 0 for row in decisions for value in row.values())
    assert len(commit_times_us(STRATEGIES["plain"], commits=4)) == 4


def test_the_study_is_one_json_object() -> None:
    said: list[str] = []
    small = ScaleOptions(nodes=(20,), max_new_tokens=4, source="scripted", candidates=(10,), repeats=2)
    result = json.loads(json.dumps(run(small, say=said.append)))
    assert {"what", "setup", "rows", "findings"} <= result.keys()
    assert "in memory" in result["setup"]["dht"]
    assert len(said) == 2
