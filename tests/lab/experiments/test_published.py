"""Published files, computed again one row of each: the same figures on any machine.

A row of `cosine` is taken where there is one, for it goes stale first. What takes real time is left out.
"""

import json
from dataclasses import replace
from typing import Any

import pytest

from cosine_lab.experiments import (
    acceptance,
    capacity,
    cooperation,
    crowd,
    here,
    learn,
    liars,
    near,
    paper,
    ring,
    routing,
    rtt,
    scale,
)
from cosine_lab.experiments.experiment import run_cell, shipped_traces
from cosine_lab.experiments.tuning import Place
from cosine_lab.report.learn_findings import AFTER
from cosine_lab.report.ring_findings import CHAIN
from cosine_lab.report.rtt_findings import ALONE
from cosine_node.cli.results import rounded
from tests.docs.pages import DOCS
from tests.lab.experiments.quick import silent

TIMED = ("_us", "wall_s", "cpu_s", "peak_mb", "decisions")
"""Ends of the names of fields that hold real time, or how often it was taken."""


def published(name: str) -> dict[str, Any]:
    result: dict[str, Any] = json.loads((DOCS / "benchmarks" / f"{name}.json").read_text("utf-8"))
    return result


def published_row(name: str, **fields: Any) -> dict[str, Any]:
    """The one row of a file that has these values."""
    [row] = [row for row in published(name)["rows"] if fields.items() <= row.items()]
    return dict(row)


def same_fields(row: dict[str, Any], again: dict[str, Any]) -> dict[str, Any]:
    """Of a published row what was computed again; it may hold more."""
    return {name: row.get(name) for name in again}


@pytest.mark.parametrize("name", ["here", "here_smol_llama", "here_smol_torch"])
def test_what_the_clock_says(name: str) -> None:
    """Real time cannot be had again; what is told of it can."""
    file = published(name)
    again = here.findings_of(file["rows"], seed=0)
    for way, told in zip(again["ways"], file["findings"]["ways"], strict=True):
        # The file holds rounded rows.
        assert way == {
            name: value if isinstance(value, str) else pytest.approx(value, rel=1e-4)
            for name, value in told.items()
        }
    assert again["mismatches"] == file["findings"]["mismatches"]
    # The weights in four bits give near ties by how many tokens a pass has; float32 gives none.
    assert not again["mismatches"] or name == "here_smol_llama"
    assert not any(verifier["emulated"] for verifier in file["setup"]["verifiers"])


def test_which_drafter_knows_which_domain() -> None:
    again, file = rounded(acceptance.run(acceptance.AcceptanceOptions(), say=silent)), published("acceptance")
    assert (again["rows"], again["findings"]) == (file["rows"], file["findings"])


def test_what_a_drafter_has_learned() -> None:
    file = published("learn")
    again = [row for family in file["setup"]["families"] for row in learn.curve_rows(family, seed=0)]
    assert rounded(again) == [row for row in file["rows"] if row["part"] == "curve"]


@pytest.mark.thorough
def test_requests_after_learning() -> None:
    options = learn.LearnOptions(families=("toy",), temperatures=(0.8,))
    place = learn.Place("toy", "literature", 0.8)
    plans = {plan.way: plan.cell for plan in learn.planned(options) if plan.place == place}
    again = learn.row_of(place, AFTER, run_cell(plans[AFTER]), run_cell(plans["plain"]), seed=options.seed)
    row = published_row("learn", part="requests", way=AFTER, **place._asdict())
    assert rounded(again) == same_fields(row, again)


@pytest.mark.thorough
def test_one_request_at_a_time() -> None:
    """On other machines, where there are fewer prompts than in the sweep."""
    options = rtt.RttOptions()
    place = Place("25/8", 20.0, 0.0)
    tuned: dict[tuple[str, Place], dict[str, Any]] = {
        (name, at): {} for name in options.side_rivals for at in (place, place._replace(rtt_ms=0.0))
    }
    alone = replace(options, rtts_ms=(), temperatures=(0.0,), side_profiles=("25/8",))
    plans = {plan.label: plan for plan in rtt.planned(alone, tuned)}
    plain_s = {at: run_cell(options.cell("plain", at, {})).seconds for at in (place, place._replace(rtt_ms=0.0))}
    again = rtt.row_of(plans["cosine"], [run_cell(plans["cosine"].cell)], plain_s, seed=options.seed)
    row = published_row("rtt", part="profile", strategy="cosine", **place._asdict())
    # Greetings have gained a field since.
    assert again.pop("bytes_per_token") == pytest.approx(row["bytes_per_token"], rel=0.01)
    assert rounded(again) == same_fields(row, again)


@pytest.mark.thorough
@pytest.mark.timeout(300)
def test_many_requests_at_once() -> None:
    setting = crowd.Setting(load=crowd.LATENCY, profile="60/6", temperature=0.0)
    again = crowd.figures_of(run_cell(crowd.cell_of(crowd.CrowdOptions(), setting, "cosine", {})), seed=0)
    row = published_row("crowd", load=crowd.LATENCY, profile="60/6", temperature=0.0, strategy="cosine")
    assert rounded(again) == same_fields(row, again)


@pytest.mark.thorough
def test_all_drafters_together_in_the_replay() -> None:
    case = next(cooperation.replay_cases(cooperation.CooperationOptions()))
    again = cooperation.replay_row(case, cooperation.compared(case))
    place = ("part", "case", "swarm", "budget_nodes", "temperature")
    row = published_row("cooperation", **{name: again[name] for name in place})
    assert rounded(again) == same_fields(row, again)


@pytest.mark.thorough
@pytest.mark.timeout(300)
def test_requests_beside_a_liar() -> None:
    """The swarm with the liar; the one without it would take as long again."""
    added = "certain of random tokens"
    found = run_cell(liars.liar_cell(liars.LiarsOptions(), 0.0, 128, added))
    row = published_row("liars", added=added, temperature=0.0, tokens_per_request=128)
    again = {"seconds": found.total_s, "requests": len(found.seconds), **found.checks}
    assert rounded(again) == same_fields(row, again)


@pytest.mark.thorough
def test_near_the_verifier() -> None:
    """Over passages, of which there are fewer than of short prompts."""
    options = near.NearOptions()
    setting = next(setting for setting in near.settings_of(options) if setting.is_long)
    rounds: dict[str, Any] = {}
    place = setting.family, setting.profile, setting.temperature
    plans = {(plan.way, plan.rtt_ms): plan for plan in near.planned(options, setting, {place: rounds})}
    ours, plain = plans[near.BOTH, 100.0], plans["plain", 100.0]
    again = near.row_of(ours, run_cell(ours.cell), run_cell(plain.cell).seconds, seed=options.seed)
    row = published_row("near", way=near.BOTH, rtt_ms=100.0, **setting.fields)
    assert rounded(again) == same_fields(row, again)


@pytest.mark.thorough
def test_a_target_in_parts() -> None:
    """Fed by a synchronous chain, and plainly: ways that feed ahead take longer."""
    row = published_row("ring", way=CHAIN, temperature=0.0, traversal_ms=200.0)
    options = ring.RingOptions(temperatures=(0.0,), traversals_ms=(200.0,))
    tuned = {(way, 0.0): row["policy"] for way in ring.RIVALS}
    plans = {plan.way: plan for plan in ring.planned(options, tuned)}
    plain = run_cell(plans["plain"].cell)
    again = ring.row_of(plans[CHAIN], run_cell(plans[CHAIN].cell), plain, seed=options.seed)
    assert rounded(again) == same_fields(row, again)


@pytest.mark.thorough
def test_the_setting_of_the_cosine_paper() -> None:
    options = paper.PaperOptions()
    cell = paper.cell_of(options, 1, "plain", {}, requests=options.requests)
    again = paper.row_of(1, "plain", cell, run_cell(cell))
    row = published_row("paper", batch=1, strategy="plain")
    assert rounded(again) == same_fields(row, again)


@pytest.mark.thorough
def test_the_clients_that_a_drafter_at_the_verifier_serves() -> None:
    """With nobody else drafting: the other ways of `cosine` take minutes."""
    options = capacity.CapacityOptions()
    [found] = [
        entry
        for entry in published("capacity")["findings"]["capacities"]
        if entry["way"] == ALONE and entry["temperature"] == 0.0
    ]
    search = capacity.search_of(options, ALONE, 0.0, {})
    again = capacity.row_of(search, found["clients"], run_cell(search.cell(found["clients"])))
    row = published_row("capacity", way=ALONE, temperature=0.0, clients=found["clients"])
    assert rounded(again) == row


@pytest.mark.thorough
def test_the_router_of_cosine() -> None:
    table = routing.RoutingTable(scenario="mixed", temperature=0.0, options=routing.RoutingOptions())
    [again] = table.rows(shipped_traces(), [routing.OURS[0]])
    row = published_row("routing", scenario="mixed", temperature=0.0, router="hedge", active=3)
    assert rounded(again) == same_fields(row, again)


@pytest.mark.thorough
def test_the_smallest_of_the_large_networks() -> None:
    again = scale.run_size(scale.ScaleOptions().scenario(100))
    virtual = {name: value for name, value in again.items() if not name.endswith(TIMED)}
    assert rounded(virtual) == same_fields(published_row("scale", nodes=100), virtual)
