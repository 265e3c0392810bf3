"""The soak's own parts; `tests/swarm/test_soak.py` runs its seeds."""

from collections import Counter
from itertools import islice

import pytest

from cosine_lab.emulation.links import seeded
from cosine_lab.simulation.faults import FaultKind, plan_faults
from cosine_lab.simulation.participants import population_of
from cosine_lab.simulation.soak import run_soak, soak_scenario
from cosine_p2p.strategy.base import Action, Event, StrategyKind
from cosine_p2p.strategy.registry import Plain

SEEDS = range(500)


def test_a_seed_is_a_scenario_every_seed_another_and_every_fault_is_drawn() -> None:
    drawn = [soak_scenario(seed) for seed in SEEDS]
    assert drawn == [soak_scenario(seed) for seed in SEEDS]
    assert len(set(drawn)) == len(SEEDS)
    faults: Counter[str] = Counter()
    for seed, scenario in zip(SEEDS, drawn, strict=True):
        chance, population = seeded(seed, "faults"), population_of(scenario)
        faults.update(plan_faults(scenario.faults, rng=chance, population=population).counts())
    assert set(faults) == {kind.value for kind in FaultKind}


class Breaking(Plain):
    def __init__(self, d_0: bytes) -> None:
        super().__init__(d_0)
        self._events = 0

    def on(self, event: Event, now_s: float) -> list[Action]:
        self._events += 1
        if self._events == 3:
            raise KeyError("a bug")
        return super().on(event, now_s)


def test_a_run_that_breaks_off_is_reported_with_its_command(caplog: pytest.LogCaptureFixture) -> None:
    told: list[int] = []
    broken = {"broken": StrategyKind(name="broken", make=Breaking, wants_drafters=False)}
    quiet = list(islice((seed for seed in SEEDS if not soak_scenario(seed, ["broken"]).eos), 2))
    report = run_soak(quiet, strategies=broken, on_run=told.append)
    assert told == quiet
    assert [failure.seed for failure in report.failures] == quiet
    assert "KeyError" in report.failures[0].violations[0]
    assert report.failures[0].command == f"cosine-node simulate --scenario soak --seed {quiet[0]}"
    assert "broke off" in caplog.text
