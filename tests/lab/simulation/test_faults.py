"""Fault plans from a SPEC or a seed, and their effects on a swarm: on the time, never on the text."""

from dataclasses import replace
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cosine_lab.simulation.faults import (
    LASTS_S,
    LIE_NAMES,
    ON_DRAFTERS,
    ON_VERIFIERS,
    FaultKind,
    FaultPlan,
    Population,
    parse_spec,
    plan_faults,
)
from cosine_lab.simulation.report import RequestEnding, SimulationReport
from cosine_lab.simulation.running import run_scenario
from cosine_lab.simulation.scenario import Scenario
from cosine_protocol.errors import UsageError
from tests.thoroughness import quick_first

POPULATION = Population(verifiers=3, drafters=4, clients=2, horizon_s=10.0)
BASE = Scenario(
    verifiers=2, drafters=2, clients=2, requests=1, max_new_tokens=30, vocab_tokens=12, rtt_ms=10.0, timeout_s=120.0
)


def plan(spec: str, population: Population = POPULATION, seed: int = 0) -> FaultPlan:
    return plan_faults(spec, rng=Random(seed), population=population)


def run(faults: str, **changes: object) -> SimulationReport:
    return run_scenario(replace(BASE, faults=faults, **changes))  # type: ignore[arg-type]


def test_a_spec_says_what_how_often_when_and_how_long() -> None:
    read = plan("stall=1@0.5+6, kill-drafter=2, liar=flood")
    assert read.counts() == {"kill-drafter": 2, "liar": 1, "stall": 1}
    (stall,) = read.of(FaultKind.STALL)
    assert (stall.at_s, stall.lasts_s) == (0.5, 6.0)
    assert read.lies == ("flood",)
    assert [fault.at_s for fault in read.faults] == sorted(fault.at_s for fault in read.faults)


@pytest.mark.parametrize(
    ("spec", "sentence"),
    [
        ("earthquake=1", "'earthquake=1' is no fault; write KIND=COUNT with a KIND of kill-drafter"),
        ("stall=0", "lacks a count"),
        ("stall=1@soon", "is no fault"),
        ("liar=saint", "There is no lie 'saint'; choose one of certain_garbage"),
    ],
)
def test_what_is_no_spec_is_refused_in_a_sentence(spec: str, sentence: str) -> None:
    for read in (plan, parse_spec):
        with pytest.raises(UsageError, match=sentence):
            read(spec)


@given(st.integers(0, 2**32), st.integers(1, 3), st.integers(0, 4))
def test_drawn_plans_are_repeatable_and_fit_their_population(seed: int, verifiers: int, drafters: int) -> None:
    population = Population(verifiers=verifiers, drafters=drafters, clients=2, horizon_s=5.0)
    drawn = plan("random", population, seed)
    assert drawn == plan("random", population, seed)
    for fault in drawn.faults:
        clients = fault.kind is FaultKind.KILL_CLIENT
        assert all(0 <= number < (2 if clients else verifiers + drafters) for number in fault.affected)
        assert not (fault.kind in ON_VERIFIERS and max(fault.affected) >= verifiers)
        assert not (fault.kind in ON_DRAFTERS and min(fault.affected) < verifiers)
        assert 0 <= fault.at_s <= population.horizon_s
        assert fault.kind not in LASTS_S or fault.lasts_s >= LASTS_S[fault.kind][0]
        assert (fault.kind is FaultKind.LIAR) == (not fault.affected)


SURVIVED = [
    *("kill-verifier=1", "partition=2", "bad-row=1", "corrupt=3", "kill-drafter=2", "restart-verifier=1"),
    *("restart-drafter=2", "stall=1+8", "slow=2", "busy=2", "overload=1"),
]


@pytest.mark.parametrize("strategy", quick_first(["cosine", "plain"]))
@pytest.mark.parametrize(
    "spec", quick_first([*SURVIVED, *(f"liar={name}" for name in LIE_NAMES)], checked=len(SURVIVED))
)
def test_a_swarm_survives(spec: str, strategy: str) -> None:
    report = run(spec, strategy=strategy)
    assert report.must_finish
    assert report.violations() == []
    assert len(report.finished) == 2


@pytest.mark.parametrize("spec", quick_first(["kill-verifier=2@0.3", "stall=2@0.3+30", "overload=2"]))
def test_with_no_verifier_left_every_request_ends_with_a_reason(spec: str) -> None:
    report = run(spec)
    assert not report.must_finish
    assert report.violations() == []
    assert report.count(RequestEnding.FAILED) == 2
    for result in report.results:
        assert result.error.startswith("No verifier could finish the request") and " Tried: " in result.error
