"""The sweep in its smallest form: what it holds, and that its findings follow from its rows."""

from collections.abc import Mapping
from typing import Any

import pytest

from cosine_lab.experiments.entrants import BY_LABEL, PUBLISHED, SHIPPED, SHIPS, OptionValues, entrant
from cosine_lab.experiments.rtt import (
    ALONE,
    BESIDE,
    COPYING,
    EQUIPPED,
    REAL,
    REMOTE,
    RttOptions,
    findings_of,
    planned,
)
from cosine_lab.experiments.tuning import Place
from cosine_node.zoo.family import Family
from tests.lab.experiments.quick import quick_result


@pytest.fixture(scope="module")
def result() -> dict[str, Any]:
    return quick_result("rtt")


def row(strategy: str, speedup: float, **other: Any) -> dict[str, Any]:
    return {
        "part": "sweep",
        "strategy": strategy,
        "profile": "60/6",
        "temperature": 0.0,
        "rtt_ms": 20.0,
        "speedup": speedup,
        "interval": [speedup, speedup],
        "worst_prompt_speedup": speedup - 0.2,
        "prompt_s": [10.0 / speedup] * 3,
        "mismatches": 0,
        "violations": 0,
        "tokens": 100,
        **other,
    }


def tuned(options: RttOptions) -> Mapping[tuple[str, Place], OptionValues]:
    """Every rival's start, everywhere."""
    profiles = (options.profile, *options.side_profiles)
    return {
        (name, place): {**entrant(name).start, "drafter": BY_LABEL}
        for name in options.rivals
        for place in options.places(profiles, (0.0, *options.rtts_ms))
    }


def test_every_rival_stands_as_published_and_as_strong_as_it_can_be_made() -> None:
    options = RttOptions()
    place = Place(options.profile, 100.0, 0.8)
    plans = {p.label: p for p in planned(options, tuned(options)) if p.part == "sweep" and p.place == place}
    for name in options.rivals:
        assert "home" not in plans[name].cell.scenario
        assert plans[name].cell.choice.get("policy", PUBLISHED) == PUBLISHED
        if entrant(name).is_stepped:
            beside = plans[name + BESIDE]
            assert beside.is_beside
            assert (beside.cell.scenario["rtt_ms"], beside.cell.scenario["decision_s"]) == (0.0, 0.0)
        else:
            equipped = plans[name + EQUIPPED].cell
            assert (equipped.choice["policy"], equipped.scenario["home"]) == (SHIPS, SHIPPED["home"])
    assert plans[ALONE].cell.scenario["max_drafters"] == 0


def test_on_real_text_it_stands_against_what_needs_no_network() -> None:
    options = RttOptions()
    place = Place("60/6", 50.0, 0.8)
    plans = {p.label: p for p in planned(options, tuned(options)) if p.part == REAL and p.place == place}
    assert list(plans) == ["plain", "cosine", REMOTE, ALONE, COPYING]
    assert {plan.family for plan in plans.values()} == {Family.SMOL}
    drafts = {
        way: (plans[way].cell.scenario["home"], plans[way].cell.scenario["max_drafters"])
        for way in (ALONE, COPYING)
    }
    assert drafts == {ALONE: (SHIPPED["home"], 0), COPYING: ("", 0)}


@pytest.mark.soak
def test_everybody_ran_and_nobody_wrote_anything_else_than_the_target(result: dict[str, Any]) -> None:
    rows = [row for row in result["rows"] if row["part"] == "sweep"]
    named = ["plain", "cosine", REMOTE, ALONE, "speculative", f"speculative{BESIDE}"]
    assert [row["strategy"] for row in rows] == named
    assert all(row["mismatches"] == row["violations"] == 0 for row in result["rows"])
    assert [len(row["speedup_by_order"]) for row in rows] == [1, 2, 2, 2, 1, 1]
    assert len({row["tokens"] / len(row["speedup_by_order"]) for row in rows}) == 1
    assert (rows[0]["speedup"], rows[0]["interval"]) == (1.0, [1.0, 1.0])
    for row in rows:
        low, high = row["interval"]
        assert low <= row["speedup"] <= high


def test_the_findings_compare_with_the_best_other_and_with_tuned_speculation() -> None:
    rows = [row("plain", 1.0), row("cosine", 2.0), row("speculative", 1.25), row("pipeinfer", 1.6)]
    rows.append(row(REMOTE, 9.0))
    rows += [r | {"rtt_ms": 300.0} for r in (row("plain", 1.0), row("cosine", 0.9), row("speculative", 0.5))]
    findings = findings_of(rows, main_rtt_ms=20.0, seed=0)
    assert findings["lowest_speedup"]["speedup"] == 0.9
    assert findings["closest"]["best_other"] == "plain"
    assert [entry["best_other"] for entry in findings["closest_of_near"]] == ["pipeinfer"]
    assert (findings["points"], findings["points_ahead"]) == (2, 1)
    [main] = findings["at_main_rtt"]
    assert main["best_other"] == "pipeinfer"
    assert main["ratio"] == pytest.approx(1.25)
    assert main["interval"] == pytest.approx([1.25, 1.25])
    assert main["latency_saved"] == pytest.approx(0.2)
    assert main["ratio_to_speculative"] == pytest.approx(1.6)


def test_on_real_text_the_least_ratio_to_the_best_without_a_network_is_found() -> None:
    at_0, at_100 = {"part": REAL, "rtt_ms": 0.0}, {"part": REAL, "rtt_ms": 100.0}
    rows = [row("plain", 1.0), row("cosine", 2.0)]
    rows += [
        row("plain", 1.0, **at_0),
        row("cosine", 2.0, **at_0),
        row(ALONE, 1.6, **at_0),
        row(COPYING, 1.2, **at_0),
    ]
    rows += [row("plain", 1.0, **at_100), row("cosine", 1.5, **at_100), row(ALONE, 1.2, **at_100)]
    rows += [row(COPYING, 1.6, **at_100)]
    findings = findings_of(rows, main_rtt_ms=20.0, seed=0)
    assert [entry["best_other"] for entry in findings["on_real_text"]] == [ALONE, COPYING]
    closest = findings["closest_on_real_text"]
    assert (closest["rtt_ms"], closest["ratio"]) == (100.0, pytest.approx(1.5 / 1.6))
    assert findings["lowest_speedup_on_real_text"] == 1.5
