"""The cooperation experiment: its replay against hand-made cases, and its smallest form."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from cosine_lab.experiments.cooperation import ABSENT, CASES, CHANGING, CasePrompts, ReplayCase, compared
from cosine_lab.experiments.cooperation_replay import (
    LookupSource,
    RecordedDrafter,
    ReplayDrafter,
    changing,
    replay_alone,
    replay_fused,
)
from cosine_lab.simulation.traces import CANDIDATES, DrafterTrace, Trace, TraceSet
from tests.lab.experiments.quick import quick_result

TOKENS = 24
CASE = ReplayCase(
    case=CHANGING,
    swarm="experts",
    budget=4,
    temperature=0.0,
    prompts=CasePrompts(split="tune", count=2, change_at=16),
)


def recorded(stream: tuple[int, ...], right: range) -> DrafterTrace:
    """A drafter whose first choice is the stream's token at some positions and another one elsewhere."""
    n = len(stream)
    tokens = np.arange(100, 100 + CANDIDATES, dtype=np.int32) + 10 * np.arange(n, dtype=np.int32)[:, None]
    for position in right:
        tokens[position, 0] = stream[position]
    claims = np.tile(np.array([0.6] + [0.05] * (CANDIDATES - 1), np.float32), (n, 1))
    return DrafterTrace(tokens, claims, np.zeros(n, np.float32), np.zeros(n, np.float32), 1.0)


def trace_of(**right: range) -> Trace:
    stream = tuple(2000 + position for position in range(TOKENS))
    return Trace(
        number=7,
        domain="code",
        split="test",
        temperature=0.0,
        seed=1,
        prompt_tokens=4,
        stream=stream,
        near_ties=(False,) * TOKENS,
        drafters={f"draft-{name}": recorded(stream, positions) for name, positions in right.items()},
    )


def drafter_of(trace: Trace, name: str) -> ReplayDrafter:
    return ReplayDrafter(RecordedDrafter(TraceSet([trace]), f"draft-{name}"))


def test_a_drafter_that_is_always_right_has_all_its_nodes_accepted() -> None:
    trace = trace_of(code=range(TOKENS))
    tally = replay_alone(drafter_of(trace, "code"), trace, budget=1)
    assert (tally.rounds, tally.accepted) == (TOKENS // 2, TOKENS // 2)


def test_a_drafter_that_is_never_right_costs_a_round_for_every_token() -> None:
    trace = trace_of(code=range(0))
    tally = replay_alone(drafter_of(trace, "code"), trace, budget=8)
    assert (tally.rounds, tally.accepted) == (TOKENS, 0)


def test_one_drafter_together_is_that_drafter_alone() -> None:
    trace = trace_of(code=range(0, TOKENS, 2))
    on_its_own = replay_alone(drafter_of(trace, "code"), trace, budget=2)
    assert replay_fused({1: drafter_of(trace, "code")}, trace, budget=2) == on_its_own


def test_drafters_that_are_right_in_turn_are_better_together() -> None:
    trace = trace_of(code=range(TOKENS // 2), math=range(TOKENS // 2, TOKENS))
    fused = replay_fused({1: drafter_of(trace, "code"), 2: drafter_of(trace, "math")}, trace, budget=4)
    best = max(replay_alone(drafter_of(trace, name), trace, budget=4).per_round for name in ("code", "math"))
    assert fused.per_round > 1.5 * best


def test_lookup_copies_what_followed_before_and_forgets_what_it_only_drafted() -> None:
    trace = replace(trace_of(code=range(0)), stream=(5, 6, 7) * (TOKENS // 3))
    lookup = LookupSource()
    at = lookup.start(trace, 4)
    assert lookup.candidates(at)[0][0] == 6
    assert lookup.candidates(lookup.after(at, 6))[0][0] == 7
    assert lookup.candidates(lookup.start(trace, 3)) == ()
    assert replay_alone(ReplayDrafter(lookup), trace, budget=3).per_round > 1.0


def test_changing_requests_begin_in_their_own_domain_and_end_in_another() -> None:
    traces = TraceSet.load_shipped().select(split="tune", temperature=0.0)
    made = changing(traces, at=64, rest_tokens=32, seed=3)
    assert made
    assert all(len(set(trace.domain.split("+"))) == 2 and 64 < len(trace.stream) <= 96 for trace in made)
    again = changing(traces, at=64, rest_tokens=32, seed=3)
    assert [(trace.number, trace.stream) for trace in again] == [(trace.number, trace.stream) for trace in made]


def test_without_its_expert_a_domain_has_the_others() -> None:
    case = replace(CASE, case=ABSENT, prompts=CasePrompts(split="tune", count=2))
    for one, trace in zip(compared(case), case.prompts.traces(0.0), strict=True):
        assert len(one.single) == 4
        assert trace.domain not in one.single
        assert one.best in one.single


def test_the_same_case_gives_the_same() -> None:
    assert compared(CASE) == compared(CASE)


@pytest.fixture(scope="module")
def result() -> dict[str, Any]:
    return quick_result("cooperation")


@pytest.mark.thorough
def test_every_case_is_replayed_and_simulated(result: dict[str, Any]) -> None:
    parts = {
        part: [row["case"] for row in result["rows"] if row["part"] == part] for part in ("replay", "simulation")
    }
    assert parts["replay"] == list(CASES)
    assert set(parts["simulation"]) == set(CASES)
    assert all(row["fused_accepted_per_round"] > 0.0 for row in result["rows"] if row["part"] == "replay")
    assert result["findings"]["mismatches"] == 0


@pytest.mark.thorough
def test_ratios_follow_from_the_rows(result: dict[str, Any]) -> None:
    for row in [row for row in result["rows"] if row["ratio"] is not None]:
        expected = row["fused_accepted_per_round"] / row["best_single_accepted_per_round"]
        assert row["ratio"] == pytest.approx(expected)
    changed = next(found for found in result["findings"]["replay"] if found["case"] == CHANGING)
    own = [row["ratio"] for row in result["rows"] if row["part"] == "replay" and row["case"] == CHANGING]
    assert (changed["lowest_ratio"], changed["highest_ratio"]) == (min(own), max(own))
