"""Tests of speed trials."""

import math
import random
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cosine_p2p.strategy.speed_trial import (
    PRICE,
    SETTLE_TOKENS,
    STRETCH_COMMITS,
    SpeedTrial,
    SpeedTrials,
    TrialPath,
)
from cosine_p2p.strategy.trial_run import DrafterCount, TrialRun

PASS_S = 0.06
Speeds = Mapping[int, float]
"""Speeds relative to plain decoding, by the number of drafters."""


@dataclass(slots=True)
class World:
    """Requests with commits at given speeds; drafts arrive after three commits."""

    rng: random.Random
    trial: SpeedTrial = field(default_factory=lambda: SpeedTrial((3, 1, 0)))
    seconds: float = 0.0
    tokens: Counter[int] = field(default_factory=Counter)

    def ask(self, speeds: Speeds, *, requests: int, tokens: int = 128) -> None:
        for _ in range(requests):
            run = TrialRun(self.trial, tokens)
            self.trial.expect(0, 1.0 / PASS_S)
            left, way, commits = tokens, -1, 0
            while left:
                commits = commits + 1 if run.way == way else 1
                way = run.way
                is_drafted = way > 0 and commits > 3
                mean = max(1.0, speeds[way]) if is_drafted else 1.0
                count = 1
                while count < min(left, 9) and self.rng.random() < 1.0 - 1.0 / mean:
                    count += 1
                seconds = PASS_S * (mean / speeds[way] if is_drafted else 1.0) * math.exp(self.rng.gauss(0.0, 0.05))
                self.seconds += seconds
                self.tokens[way] += count
                left -= count
                run.note(tokens=count, drafted=count - 1, worth=count, seconds=seconds)
            run.end()

    @property
    def speed(self) -> float:
        return self.tokens.total() * PASS_S / self.seconds


@pytest.mark.parametrize(
    ("speeds", "fastest", "least"),
    [
        ({3: 2.8, 1: 2.4, 0: 1.0}, {3}, 2.3),
        ({3: 1.5, 1: 1.8, 0: 1.0}, {1}, 1.5),
        ({3: 0.6, 1: 0.8, 0: 1.0}, {0}, 0.97),
    ],
)
def test_the_fastest_way_is_found_and_never_costs_more_than_plain(
    speeds: Speeds, fastest: set[int], least: float
) -> None:
    for seed in range(3):
        world = World(random.Random(seed))
        world.ask(speeds, requests=150)
        assert world.trial.way in fastest, f"seed {seed}"
        assert world.speed > least, f"seed {seed}"


def test_drafters_that_become_fast_are_found_again() -> None:
    for seed in range(3):
        world = World(random.Random(seed))
        world.ask({3: 0.6, 1: 0.8, 0: 1.0}, requests=20)
        world.ask({3: 2.0, 1: 1.7, 0: 1.0}, requests=80)
        assert world.trial.way != 0, f"seed {seed}"


@given(st.integers(0, 1 << 32), st.floats(0.3, 4.0), st.floats(0.3, 4.0))
def test_looks_cost_what_was_promised(seed: int, with_three: float, with_one: float) -> None:
    speeds = {3: with_three, 1: with_one, 0: 1.0}
    world = World(random.Random(seed))
    world.ask(speeds, requests=15)
    # A look is not broken off, so the last one may cost more than was expected of it.
    one_look_s = (SETTLE_TOKENS + STRETCH_COMMITS + 9) * PASS_S / min(speeds.values())
    assert world.trial.state()["spent_s"] <= PRICE * world.seconds + one_look_s


def test_only_one_request_looks_at_a_time_and_an_abandoned_look_makes_room_for_another() -> None:
    trial = SpeedTrial((1, 0))
    first, second = (TrialRun(trial, 1000) for _ in range(2))
    while first.way == 1:
        first.note(tokens=1, drafted=0, worth=1, seconds=0.1)
    for _ in range(STRETCH_COMMITS):
        second.note(tokens=1, drafted=0, worth=1, seconds=0.1)
    assert (first.way, second.way, trial.next_look(1000)) == (0, 1, None)
    first.end()
    assert TrialRun(trial, 1000).way == 0


def follow(count: DrafterCount, *, began_s: float, commits: int, every_s: float) -> float:
    """Note commits of one token at equal intervals and return the time of the next one."""
    for number in range(commits):
        count.note_commit(bytes(1), now_s=began_s + number * every_s)
    return began_s + commits * every_s


def test_drafters_slower_than_the_verifiers_plain_pass_are_let_go_after_a_few() -> None:
    count = DrafterCount(SpeedTrial((3, 0)), left_tokens=200)
    # The verifier announced a busy moment; a pass that was quicker counts.
    count.note_pass(0.040)
    count.note_pass(0.010)
    assert count.why() == "drafters: at most 3; measured here against that: nothing yet"
    follow(count, began_s=0.0, commits=8, every_s=0.021)
    assert count.allowed == 0
    assert count.why() == "drafters: none; measured here against that: 3 0.48x (± 25%)"


AT_HAND = TrialPath.of("verifier", 0.8, 0.02)


@pytest.mark.parametrize(
    ("path", "way"),
    [
        # A text is no easier to guess at a higher temperature, and drafts from farther away come no sooner.
        (TrialPath.of("verifier", 1.0, 0.02), 0),
        # What was given up where that is harder says nothing.
        (TrialPath.of("verifier", 0.0, 0.02), 3),
        (TrialPath.of("another", 0.8, 0.02), 3),
    ],
)
def test_drafters_that_were_given_up_on_one_path_are_so_on_harder_ones_alone(path: TrialPath, way: int) -> None:
    trials = SpeedTrials((3, 1, 0))
    given_up = trials.find(AT_HAND)
    assert given_up is not None and trials.known(AT_HAND) is given_up
    given_up.begin_without()
    trial = trials.find(path)
    assert trial is not None and trial.way == way


WAYS = (3, 1, 0)


def measured_trials() -> SpeedTrials:
    """Return trials that found plain decoding to be the fastest way."""
    trials = SpeedTrials(WAYS)
    trial = trials.find(AT_HAND)
    assert trial is not None
    trial.expect(0, 100.0)
    run = TrialRun(trial, 400)
    while run.left_tokens > 300:
        run.note(tokens=1, drafted=0, worth=1, seconds=0.01 if run.way == 0 else 0.03)
    run.end()
    assert trial.way == 0
    return trials


def read_trials(states: Any, ways: tuple[int, ...] = WAYS) -> SpeedTrials:
    trials = SpeedTrials(ways)
    trials.restore(states)
    return trials


def test_the_next_process_begins_where_this_one_ended_and_leaves_other_ways_out() -> None:
    trials = measured_trials()
    again = read_trials(trials.state())
    assert again.state() == trials.state()
    found = again.find(AT_HAND)
    assert found is not None and found.way == 0
    assert found.measured().keys() == {3}
    assert read_trials(trials.state(), (4, 0)).state() == []
