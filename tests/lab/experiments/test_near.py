"""The experiment on a drafter at the verifier: what it runs, and what it says of the rows."""

from typing import Any

import pytest

from cosine_lab.emulation.cities import rtt_s
from cosine_lab.experiments.experiment import Cell, Prompts, run_cell
from cosine_lab.experiments.near import (
    BESIDE_ROUNDS,
    BOTH,
    COPYING,
    MAPS,
    REMOTE,
    STEADY,
    WAYS,
    NearOptions,
    NearSetting,
    findings_of,
    planned,
    settings_of,
)
from cosine_lab.experiments.rtt import ALONE
from cosine_node.zoo.family import Family
from tests.lab.experiments.quick import quick_result


@pytest.fixture(scope="module")
def result() -> dict[str, Any]:
    return quick_result("near")


@pytest.mark.thorough
def test_every_way_gives_the_targets_text_at_every_distance(result: dict[str, Any]) -> None:
    assert [row["way"] for row in result["rows"]] == [*WAYS, BESIDE_ROUNDS]
    assert result["findings"]["mismatches"] == result["findings"]["violations"] == 0
    for row in result["rows"]:
        low, high = row["interval"]
        assert low <= row["speedup"] <= high
        assert row["worst_prompt_speedup"] <= row["speedup"]


def test_long_prompts_are_asked_of_the_real_family_alone() -> None:
    settings = settings_of(NearOptions(families=tuple(Family)))
    long = [setting for setting in settings if setting.is_long]
    assert {setting.family for setting in long} == {Family.SMOL}
    steady = [setting for setting in settings if setting.link == STEADY]
    assert len(steady) == 2 * 2 * 2 + len(long)


def test_other_links_lie_between_machines_and_not_within_them() -> None:
    options = NearOptions()
    setting = next(setting for setting in settings_of(options) if setting.link == "1 % of packets lost")
    tuned = {(setting.family, setting.profile, setting.temperature): {"drafters": 1}}
    losses = {plan.rtt_ms: plan.cell.scenario.get("loss", 0.0) for plan in planned(options, setting, tuned)}
    assert losses == {0.0: 0.0, 60.0: 0.01}


def test_on_a_map_a_row_is_told_by_the_way_between_client_and_verifier() -> None:
    options = NearOptions()
    name = "frankfurt to new-york"
    setting = next(setting for setting in settings_of(options) if setting.link == name)
    tuned = {(setting.family, setting.profile, setting.temperature): {"drafters": 1}}
    [rtt_ms] = options.distances(setting)
    assert rtt_ms == pytest.approx(1e3 * rtt_s("frankfurt", "new-york"), abs=0.05)
    cities = {
        plan.rtt_ms: plan.cell.scenario.get("drafter_cities", ()) for plan in planned(options, setting, tuned)
    }
    assert cities == {0.0: (), rtt_ms: MAPS[name]["drafter_cities"]}


def test_the_real_familys_answers_are_replayed_with_its_own_vocabulary() -> None:
    scenario = {"profile": "60/6", "temperature": 0.0, "rtt_ms": 20.0, "max_new_tokens": 8}
    found = run_cell(
        Cell(strategy="plain", scenario=scenario, prompts=Prompts(count=1, family=Family.SMOL, is_long=True))
    )
    assert found.checks["mismatches"] == found.checks["violations"] == 0


def test_ways_differ_in_their_drafters_alone() -> None:
    options = NearOptions(families=(Family.TOY,), rtts_ms=(20.0,))
    setting = next(setting for setting in settings_of(options) if setting.family is Family.TOY)
    tuned = {(setting.family, setting.profile, setting.temperature): {"drafters": 1}}
    plans = {plan.way: plan.cell for plan in planned(options, setting, tuned) if plan.rtt_ms}
    assert plans.keys() == {"plain", *WAYS}
    shared = plans[REMOTE].scenario
    for way, more in WAYS.items():
        assert plans[way].scenario == {**shared, **more}
        assert plans[way].prompts == Prompts(count=options.prompts)


def test_cosine_is_held_against_the_best_that_needs_no_network() -> None:
    setting = NearSetting(family=Family.TOY, profile="60/6", temperature=0.0)
    kind = {**setting.fields, "rtt_ms": 20.0}
    checks = {"mismatches": 0, "violations": 0}
    speeds = {REMOTE: 1.5, BOTH: 2.0, ALONE: 1.6, COPYING: 1.1, BESIDE_ROUNDS: 1.8}
    rows = [{**kind, **checks, "way": way, "speedup": speed} for way, speed in speeds.items()]
    rows.append({**rows[-1], "rtt_ms": 0.0, "speedup": 9.0})
    found = findings_of(rows)
    [entry] = found["against_beside"]
    assert entry["best_beside"] == BESIDE_ROUNDS
    assert entry["ratio"] == pytest.approx(2.0 / 1.8)
    assert found["lowest_speedup"] == 1.5
