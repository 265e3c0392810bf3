"""The sweep in its smallest form: its contents, and the findings on its rows."""

from collections.abc import Mapping

import pytest

from cosine_lab.experiments.entrants import BY_LABEL, PUBLISHED, SHIPPED, SHIPS, OptionValues, entrant
from cosine_lab.experiments.rtt import (
    ALONE,
    BESIDE,
    EQUIPPED,
    REMOTE,
    RttOptions,
    planned,
)
from cosine_lab.experiments.tuning import TuningPlace
from tests.lab.experiments.quick import quick_result


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
