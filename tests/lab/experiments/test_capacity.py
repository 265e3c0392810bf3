"""The search for the most clients of a verifier: what it tries, what it counts, and what it says of the rows."""

from dataclasses import replace
from typing import Any

import pytest

from cosine_lab.experiments.capacity import (
    FREE,
    ROUNDS,
    CapacityOptions,
    StaggeredWorkload,
    most_kept,
    row_of,
    search_of,
    searched,
)
from cosine_lab.experiments.entrants import OURS, PLAIN
from cosine_lab.experiments.experiment import run_cell, staged
from cosine_lab.report.capacity_findings import (
    BESIDE_ROUNDS,
    NOBODY_ELSE,
    WAYS,
    capacity_of,
    findings_of,
    sentences_of,
)
from cosine_lab.report.report_capacity import CAPACITY, with_as_many_clients
from cosine_lab.report.rtt_findings import ALONE, BASELINE, REMOTE
from tests.lab.experiments.quick import quick_result

QUICK = CapacityOptions.quick()


@pytest.fixture(scope="module")
def result() -> dict[str, Any]:
    return quick_result("capacity")


@pytest.mark.parametrize("length", range(1, 12))
def test_the_search_finds_the_last_count_that_keeps_the_promise_from_wherever_it_begins(length: int) -> None:
    counts = [3 * index + 1 for index in range(length)]
    for most in (0, *counts):
        for first in range(length):
            tried: list[int] = []

            def keeps(clients: int, most: int = most, tried: list[int] = tried) -> bool:
                tried.append(clients)
                return clients <= most

            found = most_kept(counts, keeps, first=first)
            where = f"most {most}, first {first}"
            assert found == sum(count <= most for count in counts) - 1, where
            assert len(set(tried)) == len(tried) <= 2 * length.bit_length() + 1, where


def test_nothing_is_run_twice_and_a_laxer_promise_is_tried_where_nobody_else_drafts() -> None:
    counts = (1, 2, 3, 4)
    # Slower with every client: none keeps 1 ms, and all keep an hour.
    options = replace(QUICK, counts=counts, promise_ms=1.0, lax_promise_ms=3.6e6, tokens=3)
    rows = searched(search_of(options, PLAIN.name, 0.0, {}, first_count=2))
    assert sorted(row["clients"] for row in rows) == [1, 2, 4]
    rounds = {(BASELINE, 0.0): ROUNDS[BASELINE][0]}
    [row] = searched(search_of(options, BASELINE, 0.0, rounds, first_count=1))
    assert row["clients"] == 1


@pytest.mark.parametrize("clients", [1, 3, 7])
def test_the_same_prompts_count_at_every_number_of_clients_and_first_texts_differ_in_length(clients: int) -> None:
    options = replace(QUICK, measured=5)
    scenario, traces = staged(search_of(options, PLAIN.name, 0.0, {}).cell(clients))
    workload = StaggeredWorkload(scenario, traces)
    tasks = [workload.task(number) for number in range(scenario.total_requests)]
    counted = options.counted(clients)
    assert [tasks[number].prompt for number in counted] == [trace.prompt() for trace in traces[:5]]
    assert counted.stop <= scenario.total_requests - clients
    assert [tasks[number].max_new_tokens for number in counted] == [
        min(options.tokens, len(trace.stream)) for trace in traces[:5]
    ]
    cut = [task.max_new_tokens for task in tasks[:clients]]
    assert cut[-1] == min(options.tokens, len(tasks[clients - 1].stream))
    assert clients == 1 or cut[0] < options.tokens
    assert all(len(task.stream) == task.max_new_tokens for task in tasks)


def test_ways_differ_in_who_drafts_alone() -> None:
    options = CapacityOptions()
    rounds = {(way, 0.0): choices[0] for way, choices in ROUNDS.items()}
    cells = {way: search_of(options, way, 0.0, rounds).cell(30) for way in WAYS}
    shared = {**cells[BASELINE].scenario, "drafters": 0}
    for way, cell in cells.items():
        assert cell.prompts == cells[PLAIN.name].prompts
        more = {"rtt_ms": 0.0, "decision_s": 0.0} if way == BESIDE_ROUNDS else FREE.get(way, {})
        # One for every four clients, more than the five kinds.
        drafters = 0 if way in NOBODY_ELSE else 8
        assert cell.scenario == {**shared, **more, "drafters": drafters}, way
    assert options.drafters(1) == len(options.domains) == 5


def test_every_choice_of_rounds_can_be_run_and_what_counts_is_told() -> None:
    for way, choices in ROUNDS.items():
        for choice in choices:
            search = search_of(replace(QUICK, tokens=3), way, 0.0, {(way, 0.0): choice})
            row = row_of(search, 2, run_cell(search.cell(2)))
            assert row["requests"] == QUICK.measured
            assert row["mismatches"] == row["violations"] == 0, choice


@pytest.mark.thorough
def test_every_way_gives_the_targets_text_and_its_time_adds_up(result: dict[str, Any]) -> None:
    assert list(dict.fromkeys(row["way"] for row in result["rows"])) == list(WAYS)
    assert result["findings"]["mismatches"] == result["findings"]["violations"] == 0
    for row in result["rows"]:
        assert row["target_share"] + row["own_drafts_share"] + row["idle_share"] == pytest.approx(1.0)
        assert (row["own_drafts_share"] > 0.0) == (row["way"] in (OURS.name, ALONE))
        assert row["interval"][0] <= row["token_p95_ms"] <= row["interval"][1]
    assert all(part.markdown(part.of(result)) for part in CAPACITY.tables)


def row(way: str, clients: int, token_ms: float) -> dict[str, Any]:
    return {
        "way": way,
        "temperature": 0.0,
        "clients": clients,
        "token_p95_ms": token_ms,
        "interval": [token_ms, token_ms],
        "promise_ms": 50.0,
        "lax_promise_ms": 75.0,
        "gamma": 3.0,
        "draft_ms": 4.0,
        "pass_ms": 60.0,
        "drafters": 5,
        "mismatches": 0,
        "violations": 0,
    }


def test_what_was_tried_above_a_broken_promise_does_not_count() -> None:
    rows = [row(ALONE, clients, ms) for clients, ms in ((8, 51.0), (4, 40.0), (6, 49.0), (10, 48.0))]
    found = capacity_of(rows, ALONE, 0.0, promise_ms=50.0)
    assert (found["clients"], found["token_p95_ms"], found["next_clients"]) == (6, 49.0, 8)
    none = capacity_of(rows, ALONE, 0.0, promise_ms=30.0)
    assert (none["clients"], none["token_p95_ms"], none["next_clients"]) == (0, 40.0, 4)
    every = capacity_of(rows, ALONE, 0.0, promise_ms=60.0)
    assert (every["clients"], every["next_clients"], every["next_p95_ms"]) == (10, None, None)


def test_what_ships_is_held_against_the_best_of_the_others_and_the_formula() -> None:
    ends = {OURS.name: 12, REMOTE: 9, ALONE: 10, BESIDE_ROUNDS: 1, BASELINE: 0, PLAIN.name: 0}
    rows = [row(way, clients, 49.0) for way, clients in ends.items() if clients]
    rows += [row(way, clients + 1, 60.0) for way, clients in ends.items()]
    found = findings_of(rows)
    [entry] = found["against"]
    assert (entry["clients"], entry["best_other"], entry["best_other_clients"]) == (12, ALONE, 10)
    assert entry["ratio"] == pytest.approx(1.2)
    assert entry["predicted_ratio"] == pytest.approx(1.0 + 3.0 * 4.0 / 60.0)
    assert entry["measured_ratio"] == pytest.approx(0.9)
    assert {one["way"]: one["clients"] for one in found["capacities"]} == ends
    assert {one["way"]: one["clients"] for one in found["lax"]} == {ALONE: 11, PLAIN.name: 1}
    assert "it serves 12 with `cosine` as it ships and 5 drafters elsewhere" in sentences_of(found)
    same = with_as_many_clients({"rows": rows})
    assert {one["clients"] for one in same} <= {12, 13}
    assert [one["clients"] for one in same] == sorted(one["clients"] for one in same)
