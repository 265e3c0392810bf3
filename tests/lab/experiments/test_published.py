"""Published files, with one row of each computed again: the figures are the same on any machine.

A row of `cosine` is chosen if there is one, since it is the first to become outdated. Real time is left out.
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from cosine_engine.zoo.family import Family
from cosine_lab.experiments import here_cores, ring, ring_here, rtt
from cosine_lab.experiments.experiment import run_cell
from cosine_lab.experiments.results import rounded
from cosine_lab.experiments.tuning import TuningPlace
from tests.docs.pages import DOCS


def published(name: str) -> dict[str, Any]:
    result: dict[str, Any] = json.loads((DOCS / "benchmarks" / f"{name}.json").read_text("utf-8"))
    return result


def published_row(name: str, **fields: Any) -> dict[str, Any]:
    """Return the only row of a file with these values."""
    [row] = [row for row in published(name)["rows"] if fields.items() <= row.items()]
    return dict(row)


def same_fields(row: dict[str, Any], again: dict[str, Any]) -> dict[str, Any]:
    """Return the recomputed part of a published row."""
    return {name: row.get(name) for name in again}


@pytest.mark.parametrize(
    ("name", "findings_of", "device"),
    [
        ("here_cores", here_cores.findings_of, ""),
        ("ring_here", ring_here.findings_of, ""),
        ("ring_emulated", ring_here.findings_of, "15/6"),
    ],
)
def test_what_the_clock_says(
    name: str, findings_of: Callable[[Sequence[dict[str, Any]], int], dict[str, Any]], device: str
) -> None:
    """Real time cannot be reproduced, unlike the findings on it."""
    file = published(name)
    again = findings_of(file["rows"], 0)
    for way, told in zip(again["ways"], file["findings"]["ways"], strict=True):
        # The file has rounded rows.
        assert {field: way[field] for field in told} == {
            field: value if isinstance(value, str | dict) else pytest.approx(value, rel=1e-4)
            for field, value in told.items()
        }
    assert again["mismatches"] == file["findings"]["mismatches"]
    assert not again["mismatches"]
    # Links may be delayed; passes are real unless the page says otherwise.
    assert {verifier["emulated"].partition("@")[0] for verifier in file["setup"]["verifiers"]} == {device}


@pytest.mark.parametrize(
    ("name", "part"),
    [
        *(("rtt", part) for part in ("against_best_other", "at_other_profiles", "on_real_text")),
        *(("ring", part) for part in ("against", "limits")),
    ],
)
def test_findings_follow_from_the_rows(name: str, part: str) -> None:
    file = published(name)
    setup, findings = file["setup"], file["findings"]
    if name == "rtt":
        again = rtt.findings_of(file["rows"], main_rtt_ms=setup["main_rtt_ms"], seed=setup["seed"])
    else:
        coverage = {row["temperature"]: row for row in findings["coverage"]}
        again = ring.findings_of(file["rows"], coverage, seed=setup["seed"])
    for found, told in zip(again[part], findings[part], strict=True):
        # The file has rounded rows.
        assert told == {
            name: value if isinstance(value, str | None) else pytest.approx(value, rel=1e-4, abs=1e-5)
            for name, value in found.items()
        }


@pytest.mark.thorough
def test_one_request_at_a_time() -> None:
    """On other machines, with fewer prompts than in the sweep."""
    options = rtt.RttOptions()
    place = TuningPlace("25/8", 20.0, 0.0)
    tuned: dict[tuple[str, TuningPlace], dict[str, Any]] = {
        (name, at): {} for name in options.side_rivals for at in (place, place._replace(rtt_ms=0.0))
    }
    alone = replace(options, rtts_ms=(), temperatures=(0.0,), side_profiles=("25/8",), real_profiles=())
    plans = {plan.label: plan for plan in rtt.planned(alone, tuned)}
    plain_s = {
        (Family.TOY, at): run_cell(options.cell("plain", at, {})).seconds
        for at in (place, place._replace(rtt_ms=0.0))
    }
    again = rtt.row_of(plans["cosine"], [run_cell(plans["cosine"].cell)], plain_s, seed=options.seed)
    row = published_row("rtt", part="profile", strategy="cosine", **place._asdict())
    assert rounded(again) == same_fields(row, again)


@pytest.mark.thorough
def test_a_target_in_parts() -> None:
    """A synchronous chain, and plain decoding: ways that feed ahead take longer."""
    row = published_row("ring", way=ring.CHAIN, temperature=0.0, traversal_ms=200.0)
    options = ring.RingOptions(temperatures=(0.0,), traversals_ms=(200.0,))
    tuned = {(way, 0.0): row["policy"] for way in ring.RIVALS}
    plans = {plan.way: plan for plan in ring.planned(options, tuned)}
    plain = run_cell(plans["plain"].cell)
    again = ring.row_of(plans[ring.CHAIN], run_cell(plans[ring.CHAIN].cell), plain, seed=options.seed)
    assert rounded(again) == same_fields(row, again)
