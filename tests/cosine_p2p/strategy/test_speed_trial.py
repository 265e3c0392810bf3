"""Tests of speed trials."""

import math
import random
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cosine_p2p.strategy.speed_trial import LOOK_TOKENS, PAUSE, DrafterCount, SpeedTrial, SpeedTrials, TrialPath

PASS_S = 0.06
WAYS = (3, 1, 0)
Speeds = Mapping[int, float]
"""Speeds relative to plain decoding, by the number of drafters."""


def authors(tokens: int) -> bytes:
    """Return the authors of a commit whose last token is the target's own."""
    return bytes([1] * (tokens - 1) + [0])


@dataclass(slots=True)
class World:
    """Requests with commits at given speeds; drafts arrive after three commits."""

    rng: random.Random
    trial: SpeedTrial = field(default_factory=lambda: SpeedTrial(WAYS))
    seconds: float = 0.0
    tokens: Counter[int] = field(default_factory=Counter)

    def ask(self, speeds: Speeds, *, requests: int, tokens: int = 128) -> None:
        for _ in range(requests):
            drafters = DrafterCount(self.trial, left_tokens=tokens)
            drafters.note_pass(PASS_S)
            left, way, commits = tokens, -1, 0
            while left:
                allowed = drafters.allowed
                assert allowed is not None
                commits = commits + 1 if allowed == way else 1
                way = allowed
                is_drafted = way > 0 and commits > 3
                mean = max(1.0, speeds[way]) if is_drafted else 1.0
                count = 1
                while count < min(left, 9) and self.rng.random() < 1.0 - 1.0 / mean:
                    count += 1
                seconds = PASS_S * (mean / speeds[way] if is_drafted else 1.0)
                self.seconds += seconds * math.exp(self.rng.gauss(0.0, 0.05))
                self.tokens[way] += count
                left -= count
                drafters.note_commit(authors(count), now_s=self.seconds)
            drafters.end()

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
def test_the_fastest_way_is_found_at_no_cost_over_plain(speeds: Speeds, fastest: set[int], least: float) -> None:
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
    assert world.trial.state()["credit_s"] >= -(LOOK_TOKENS + 9) * PASS_S / min(speeds.values())


def test_only_one_request_looks_at_a_time_and_an_abandoned_look_makes_room_for_another() -> None:
    trial = SpeedTrial((3, 0))
    trial.begin_without()
    trial.note_time(1e6)
    for _ in range(PAUSE):
        trial.end_stretch(10.0)
    first, second = (DrafterCount(trial, left_tokens=1000) for _ in range(2))
    assert (first.allowed, second.allowed) == (3, 0)
    first.end()
    assert DrafterCount(trial, left_tokens=1000).allowed == 3


def test_drafters_slower_than_the_verifiers_plain_pass_are_let_go_after_a_few() -> None:
    drafters = DrafterCount(SpeedTrial((3, 0)), left_tokens=200)
    # The verifier announced a busy moment; a pass that was quicker counts.
    drafters.note_pass(0.040)
    drafters.note_pass(0.010)
    assert drafters.why() == "drafters: at most 3; measured here against that: nothing yet"
    for number in range(8):
        drafters.note_commit(authors(1), now_s=0.021 * number)
    assert drafters.allowed == 0 and not drafters.may_pay
    assert drafters.why() == "drafters: none; measured here against that: 3 0.48x (± 25%)"


AT_HAND = TrialPath.of("verifier", 0.8)


def measured_trials() -> SpeedTrials:
    """Return trials that found plain decoding to be the fastest way."""
    trials = SpeedTrials(WAYS)
    drafters = DrafterCount(trials.find(AT_HAND), left_tokens=400)
    drafters.note_pass(0.01)
    for number in range(100):
        drafters.note_commit(authors(1), now_s=number * (0.03 if drafters.allowed else 0.01))
    drafters.end()
    assert trials.find(AT_HAND).way == 0
    return trials


def test_the_next_process_begins_where_this_one_ended_and_leaves_other_ways_out() -> None:
    trials = measured_trials()
    again, others = SpeedTrials(WAYS), SpeedTrials((4, 0))
    for restored in (again, others):
        restored.restore(trials.state())
    assert again.state() == trials.state() and again.find(AT_HAND).measured().keys() == {3}
    assert others.state() == []


@pytest.mark.parametrize(("break_even", "way"), [(None, 3), (300, 3), (500, 0)])
def test_where_few_drafters_pay_a_new_client_begins_without(break_even: int | None, way: int) -> None:
    assert SpeedTrials(WAYS).find(AT_HAND, break_even=break_even).way == way
