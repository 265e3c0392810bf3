"""Sweeps in virtual time: what is compared, and that every way writes the target's text."""

from collections.abc import Mapping
from dataclasses import replace
from importlib import import_module
from typing import get_type_hints

import pytest

from cosine_lab.experiments import ring
from cosine_lab.experiments.entrants import BY_LABEL, PUBLISHED, SHIPPED, SHIPS, OptionValues, entrant
from cosine_lab.experiments.rtt import ALONE, BESIDE, EQUIPPED, REMOTE, RttOptions, planned
from cosine_lab.experiments.tuning import TuningPlace


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


WAYS = {
    "ring": ["plain", *ring.RIVALS, "cosine", *ring.OBJECTIONS],
    "rtt": ["plain", "cosine", REMOTE, ALONE, "speculative", f"speculative{BESIDE}"],
}


@pytest.mark.parametrize(
    "name", [pytest.param("ring", marks=pytest.mark.thorough), pytest.param("rtt", marks=pytest.mark.soak)]
)
def test_every_way_writes_the_targets_text(name: str) -> None:
    """In the smallest form of a sweep."""
    run = import_module(f"cosine_lab.experiments.{name}").run
    options = get_type_hints(run)["options"].quick()
    result = run(replace(options, processes=1), say=lambda _: None)
    swept = [row for row in result["rows"] if row.get("part", "sweep") == "sweep"]
    assert [row.get("way", row.get("strategy")) for row in swept] == WAYS[name]
    assert all(row["mismatches"] == row["violations"] == 0 for row in result["rows"])
