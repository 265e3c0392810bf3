"""The experiment on drafters that learn: recorded curves, who stands in whose place, and what the findings say."""

from dataclasses import replace
from typing import Any

import pytest

from cosine_lab.experiments.experiment import CellResult, run_cell
from cosine_lab.experiments.learn import (
    COPYING,
    WAYS,
    LearnOptions,
    Place,
    curve_rows,
    learner_of,
    planned,
    planned_swarms,
    swarm_rows,
)
from cosine_lab.report.learn_findings import AFTER, BEFORE, EXPERT, LEARNING, SHIPPED_ONLY, findings_of
from cosine_node.zoo.family import Family
from tests.lab.experiments.quick import quick_result
from tests.lab.simulation.test_report import REPORT
from tests.lab.simulation.test_report import result as request

TOY = Family.TOY.value


@pytest.fixture(scope="module")
def result() -> dict[str, Any]:
    return quick_result("learn")


def test_every_way_gives_the_targets_text(result: dict[str, Any]) -> None:
    requests = [row for row in result["rows"] if row["part"] == "requests"]
    assert [row["way"] for row in requests if row["domain"] == "literature"] == ["plain", *WAYS]
    assert [row["way"] for row in requests if row["domain"] == "math"] == ["plain", BEFORE, AFTER]
    assert result["findings"]["mismatches"] == result["findings"]["violations"] == 0


def test_a_curve_begins_with_the_drafter_as_shipped(result: dict[str, Any]) -> None:
    for domain in ("literature", "math"):
        rows = [row for row in result["rows"] if row["part"] == "curve" and row["domain"] == domain]
        assert [row["learned_tokens"] for row in rows] == [0, 2000, 5000, 10_000, 20_000]
        assert rows[0]["gain_points"] == 0.0
        for row in rows:
            low, high = row["interval"]
            assert low <= row["first_choice"] <= high
            assert row["gain_points"] == pytest.approx(100 * (row["first_choice"] - rows[0]["first_choice"]))


def test_ways_differ_in_who_stands_in_the_learners_place() -> None:
    options = LearnOptions(families=(TOY,), temperatures=(0.8,))
    plans = {(plan.place.domain, plan.way): plan.cell.scenario["domains"] for plan in planned(options)}
    others = ("code", "general", "lookup")
    assert plans["literature", BEFORE] == (*others, "math")
    assert plans["literature", AFTER] == plans["math", AFTER] == (*others, "math+20000")
    assert plans["literature", EXPERT] == (*others, "literature")
    assert plans["literature", COPYING] == ("lookup",)


def test_a_swarm_that_learns_has_the_same_requests_as_one_that_does_not() -> None:
    options = LearnOptions(swarm_families=(TOY,), swarm_temperatures=(0.8,))
    learning, shipped = planned_swarms(options)
    assert (learning.way, shipped.way) == (LEARNING, SHIPPED_ONLY)
    assert {**learning.cell.scenario, "learners": 0} == shipped.cell.scenario
    assert learning.cell.prompts == shipped.cell.prompts


@pytest.mark.thorough
def test_a_swarm_learns_from_what_it_is_asked() -> None:
    options = LearnOptions(swarm_families=(TOY,), swarm_requests=5)
    learning = next(planned_swarms(options))
    rows = list(swarm_rows(learning.place, learning.way, run_cell(learning.cell), options))
    assert [row["quarter"] for row in rows] == [1, 2, 3, 4]
    assert [row["version_at_the_end"] for row in rows] == sorted(row["version_at_the_end"] for row in rows)
    assert rows[-1]["version_at_the_end"] >= 2000
    assert not any(row["mismatches"] or row["violations"] for row in rows)


def requests_row(way: str, seconds: float) -> dict[str, Any]:
    place = Place(TOY, "literature", 0.0)._asdict()
    return {"part": "requests", **place, "way": way, "prompt_s": [seconds] * 3, "mismatches": 0, "violations": 0}


def test_requests_after_learning_are_held_against_those_before_and_an_expert() -> None:
    rows = [requests_row(way, s) for way, s in (("plain", 9.0), (BEFORE, 6.0), (AFTER, 4.0), (EXPERT, 2.0))]
    found = findings_of(rows, {}, seed=0)["against"]
    assert [(row["over"], row["ratio"]) for row in found] == [(BEFORE, 1.5), (EXPERT, 0.5)]


def test_quarters_are_held_against_the_same_requests_where_nobody_learns() -> None:
    place = Place(TOY, "literature", 0.8)
    slow = replace(REPORT, results=tuple(request(number, seconds=4.0) for number in range(8)))
    fast = replace(REPORT, results=tuple(request(n, seconds=4.0 if n < 4 else 2.0) for n in range(8)))
    swarms = {(place, LEARNING): CellResult(fast, ()), (place, SHIPPED_ONLY): CellResult(slow, ())}
    found = findings_of([], swarms, seed=0)["quarters"]
    assert [(row["quarter"], row["ratio"]) for row in found] == [(1, 1.0), (2, 1.0), (3, 2.0), (4, 2.0)]


@pytest.mark.parametrize(
    ("family", "own", "new", "others"),
    [
        (Family.TOY, "math", "literature", ("code", "general", "lookup")),
        (Family.SMOL, "code", "medical", ("general", "math", "lookup")),
    ],
)
def test_who_learns_is_read_from_the_recorded_runs(
    family: Family, own: str, new: str, others: tuple[str, ...]
) -> None:
    learner = learner_of(family)
    assert (learner.own, learner.new, learner.tokens, learner.others) == (own, new, 20_000, others)
    gained = {row["domain"]: row["gain_points"] for row in curve_rows(family, seed=0) if row["learned_tokens"]}
    assert gained[new] > 0
