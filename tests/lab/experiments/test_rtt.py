"""The sweep in its smallest form: its contents, and the findings on its rows."""

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
from cosine_lab.experiments.tuning import TuningPlace
from tests.lab.experiments.quick import quick_result


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


def tuned(options: RttOptions) -> Mapping[tuple[str, TuningPlace], OptionValues]:
    profiles = (options.profile, *options.side_profiles)
    return {
        (name, place): {**entrant(name).start, "drafter": BY_LABEL}
        for name in options.rivals
        for place in options.places(profiles, (0.0, *options.rtts_ms))
    }


def test_every_rival_stands_as_published_and_as_strong_as_it_can_be_made() -> None:
    options = RttOptions()
    place = TuningPlace(options.profile, 100.0, 0.8)
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


@pytest.mark.soak
def test_everybody_ran_and_nobody_wrote_anything_else_than_the_target() -> None:
    result = quick_result("rtt")
    rows = [row for row in result["rows"] if row["part"] == "sweep"]
    named = ["plain", "cosine", REMOTE, ALONE, "speculative", f"speculative{BESIDE}"]
    assert [row["strategy"] for row in rows] == named
    assert all(row["mismatches"] == row["violations"] == 0 for row in result["rows"])
    assert (rows[0]["speedup"], rows[0]["interval"]) == (1.0, [1.0, 1.0])


def test_the_findings_compare_with_the_best_other_and_with_tuned_speculation() -> None:
    rows = [row("plain", 1.0), row("cosine", 2.0), row("speculative", 1.25), row("pipeinfer", 1.6)]
    rows.append(row(REMOTE, 9.0))
    rows += [row(way, speedup, part=REAL) for way, speedup in (("plain", 1.0), ("cosine", 1.5), (COPYING, 1.6))]
    rows += [r | {"rtt_ms": 300.0} for r in (row("plain", 1.0), row("cosine", 0.9), row("speculative", 0.5))]
    findings = findings_of(rows, main_rtt_ms=20.0, seed=0)
    assert findings["lowest_speedup"]["speedup"] == 0.9
    assert findings["closest"]["best_other"] == "plain"
    assert (findings["points"], findings["points_ahead"]) == (2, 1)
    [main] = findings["at_main_rtt"]
    assert main["best_other"] == "pipeinfer"
    assert main["ratio"] == pytest.approx(1.25)
    assert main["interval"] == pytest.approx([1.25, 1.25])
    assert main["ratio_to_speculative"] == pytest.approx(1.6)
    closest = findings["closest_on_real_text"]
    assert (closest["best_other"], closest["ratio"]) == (COPYING, pytest.approx(1.5 / 1.6))
