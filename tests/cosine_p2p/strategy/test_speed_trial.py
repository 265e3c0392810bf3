"""A trial finds the fastest way by looking, within a bounded price, and takes notice when speeds change."""

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
    MAX_TRIALS,
    PRICE,
    SETTLE_TOKENS,
    STRETCH_COMMITS,
    SpeedTrial,
    SpeedTrials,
    TrialPath,
)
from cosine_p2p.strategy.trial_run import DrafterCount, TrialRun
from cosine_protocol.limits import HOME_AUTHOR

PASS_S = 0.06
Speeds = Mapping[int, float]
"""Times as fast as plain decoding, by the number of drafters."""


@dataclass(slots=True)
class World:
    """Requests whose commits come as fast as `speeds` says; drafters show their drafts after three commits."""

    rng: random.Random
    trial: SpeedTrial = field(default_factory=lambda: SpeedTrial((3, 1, 0)))
    seconds: float = 0.0
    tokens: Counter[int] = field(default_factory=Counter)

    def ask(self, speeds: Speeds, *, requests: int, tokens: int = 128) -> None:
        """Let requests of so many tokens come one after the other."""
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
        """Times as fast as plain decoding, so far."""
        return self.tokens.total() * PASS_S / self.seconds


@pytest.mark.parametrize(
    ("speeds", "fastest", "least"),
    [
        ({3: 2.8, 1: 2.4, 0: 1.0}, {3}, 2.3),
        ({3: 1.5, 1: 1.8, 0: 1.0}, {1}, 1.5),
        ({3: 0.6, 1: 0.8, 0: 1.0}, {0}, 0.97),
        ({3: 0.95, 1: 1.0, 0: 1.0}, {0, 1}, 0.97),
        ({3: 1.0, 1: 1.0, 0: 1.0}, {0, 1, 3}, 0.97),
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


@pytest.mark.parametrize(("requests", "tokens"), [(1, 80), (5, 16)])
def test_drafters_that_slow_the_verifier_are_let_go_soon_in_short_requests_too(requests: int, tokens: int) -> None:
    world = World(random.Random(1))
    world.ask({3: 0.5, 1: 0.5, 0: 1.0}, requests=requests, tokens=tokens)
    assert world.trial.way == 0
    assert world.tokens[3] <= 80


def test_a_look_at_plain_decoding_waits_until_it_can_be_paid() -> None:
    world = World(random.Random(1))
    world.ask({3: 2.8, 1: 2.8, 0: 1.0}, requests=2)
    assert not world.tokens[0]


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


def test_a_request_too_short_for_a_look_gets_none() -> None:
    trial = SpeedTrial((1, 0))
    for _ in range(20):
        run = TrialRun(trial, 12)
        for _ in range(12):
            run.note(tokens=1, drafted=0, worth=1, seconds=0.1)
            assert run.way == 1
        run.end()


def test_another_temperature_that_drafters_slow_down_lets_them_go_within_a_request() -> None:
    for seed in range(8):
        world = World(random.Random(seed))
        world.ask({3: 2.0, 1: 1.8, 0: 1.0}, requests=20)
        assert world.trial.way != 0, f"seed {seed}"
        warmer = World(random.Random(seed), trial=world.trial.similar())
        warmer.ask({3: 0.6, 1: 0.6, 0: 1.0}, requests=1)
        assert warmer.trial.way == 0, f"seed {seed}"


@dataclass(frozen=True, slots=True)
class Looked:
    """A trial: a stretch as fast and worth as much as `before`, a `look` at the other way, stretches `after` it."""

    ways: tuple[int, int]
    before: tuple[float, float]
    look: tuple[float, float]
    after: tuple[float, ...]

    def trial(self) -> SpeedTrial:
        trial, worth = SpeedTrial(self.ways), self.before[1]
        trial.end_stretch(self.before[0], worth=worth)
        trial.end_look(self.ways[1], self.look[0], worth=self.look[1])
        for speed in self.after:
            trial.end_stretch(speed, worth=worth)
        return trial


@pytest.mark.parametrize(
    ("looked", "way", "ratio"),
    [
        # A first look that was a little faster is compared with one more stretch.
        (Looked((3, 0), (10.0, 2.0), (16.0, 2.0), (10.0,)), 3, None),
        (Looked((3, 0), (10.0, 2.0), (16.0, 2.0), (10.0, 10.0)), 0, None),
        (Looked((3, 0), (10.0, 2.0), (16.0, 2.0), (10.0, 16.0)), 3, None),
        # One that was fast because the load fell changes nothing.
        (Looked((3, 0), (10.0, 2.0), (20.0, 2.0), (40.0,)), 3, None),
        # Drafts are no faster than the tokens that they brought, and none no slower than what these were worth.
        (Looked((0, 3), (10.0, 1.0), (30.0, 1.1), (10.0,)), 0, 1.1),
        (Looked((3, 0), (10.0, 1.25), (2.0, 1.0), (10.0,)), 3, 0.8),
        # A way that was praised enough is taken.
        (Looked((0, 3), (10.0, 2.0), (18.0, 2.0), (10.0,)), 3, None),
    ],
)
def test_a_look_is_judged_by_the_stretches_beside_it(looked: Looked, way: int, ratio: float | None) -> None:
    trial = looked.trial()
    assert trial.way == way and trial.next_look(1000) is None
    if ratio is not None:
        assert trial.measured()[looked.ways[1]].ratio == pytest.approx(ratio)


def test_a_way_that_one_look_praised_too_much_is_doubted_soon() -> None:
    trial = Looked((0, 3), (10.0, 2.0), (18.0, 2.0), (10.0, 6.0)).trial()
    assert trial.next_look(1000) == 0


@pytest.mark.parametrize(
    ("commits", "least_left", "most_left"),
    [
        # Plain passes a commit takes, and those that it takes the place of.
        ([(1.36, 1)], 8, 9),
        ([(3.0, 1)], 6, 7),
        ([(1.36, 1), (1.36, 2)], None, None),
        ([(1.36, 2), (1.36, 1), (1.36, 1)], 100, 130),
        ([(1.0, 1)], None, None),
    ],
)
def test_untried_drafts_may_cost_three_passes_and_no_more_until_that_is_paid(
    commits: list[tuple[float, int]], least_left: int | None, most_left: int | None
) -> None:
    trial = SpeedTrial((3, 0))
    run = TrialRun(trial, 1000)
    noted = 0
    lost_s = 0.0
    while run.way and noted < 400:
        passes, worth = commits[noted % len(commits)]
        noted += 1
        lost_s += PASS_S * (passes - worth)
        run.owe(worth=worth, seconds=PASS_S * passes, plain_speed=1.0 / PASS_S)
    if least_left is None or most_left is None:
        assert run.way == 3
        return
    assert least_left <= noted <= most_left
    # Nothing is spent on another look before a percent of the time has paid for this one.
    while (way := trial.next_look(1000)) is None and noted < 5000:
        noted += 1
        trial.spend(worth=1, seconds=PASS_S, is_price=False)
        if not noted % STRETCH_COMMITS:
            trial.end_stretch(1.0 / PASS_S, worth=1.0)
    assert way == 3 and noted * PRICE >= lost_s / PASS_S


def follow(count: DrafterCount, *, began_s: float, commits: int, every_s: float) -> float:
    """Note commits of one token at even distances; the time of the next one."""
    for number in range(commits):
        count.note_commit(bytes(1), now_s=began_s + number * every_s)
    return began_s + commits * every_s


def test_without_a_trial_nothing_is_decided() -> None:
    count = DrafterCount(None, left_tokens=100)
    follow(count, began_s=0.0, commits=50, every_s=0.1)
    assert (count.allowed, count.why()) == (None, "")


def test_drafters_slower_than_the_verifiers_plain_pass_are_let_go_after_a_few() -> None:
    count = DrafterCount(SpeedTrial((3, 0)), left_tokens=200)
    # The verifier announced a busy moment; a pass that was quicker counts.
    count.note_pass(0.040)
    count.note_pass(0.010)
    assert count.why() == "drafters: at most 3; measured here against that: nothing yet"
    follow(count, began_s=0.0, commits=8, every_s=0.021)
    assert count.allowed == 0
    assert count.why() == "drafters: none; measured here against that: 3 0.48x (± 25%)"


def test_home_drafts_that_drafters_take_the_place_of_count_where_there_are_none() -> None:
    """Each second pass brings one drafted token; two drafts of the verifier's own are there where none came."""
    count = DrafterCount(SpeedTrial((3, 0)), left_tokens=2000)
    count.note_pass(0.1)
    for number in range(300):
        is_drafted = count.allowed and number % 2
        authors = bytes((1, 0)) if is_drafted else bytes((HOME_AUTHOR, HOME_AUTHOR, 0))
        count.note_commit(authors, now_s=0.1 * number)
    assert count.allowed == 0


def test_what_the_verifier_copies_from_the_text_counts_for_nobody() -> None:
    count = DrafterCount(SpeedTrial((3, 0)), left_tokens=2000)
    count.note_pass(0.1)
    for number in range(300):
        count.note_commit(bytes((1, 0)) if count.allowed else bytes(3), now_s=0.1 * number)
    assert count.allowed == 3


def test_what_was_measured_ends_with_the_verifier() -> None:
    count = DrafterCount(SpeedTrial((0, 3)), left_tokens=200)
    assert count.allowed == 0
    count.end()
    assert count.allowed is None
    count.note_pass(0.01)
    count.note_commit(bytes(1), now_s=1.0)


AT_HAND = TrialPath.of("verifier", 0.8, 0.02)


@pytest.mark.parametrize(
    ("path", "way"),
    [
        (TrialPath.of("verifier", 0.8, 0.03), 0),
        # A text is no easier to guess at a higher temperature, and drafts from farther away come no sooner.
        (TrialPath.of("verifier", 1.0, 0.02), 0),
        (TrialPath.of("verifier", 0.8, 0.1), 0),
        # What was given up where that is harder says nothing.
        (TrialPath.of("verifier", 0.0, 0.02), 3),
        (TrialPath.of("verifier", 1.0, 0.005), 3),
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


def test_where_only_drafts_that_are_nearly_certain_would_pay_drafters_are_looked_at_once_that_can_be_paid() -> None:
    """Whatever they do: with drafters a commit takes 2.7 times as long here."""
    trials = SpeedTrials((3, 1, 0))
    trial = trials.find(AT_HAND, break_even=900)
    assert trial is not None
    world, slow = World(random.Random(1), trial=trial), {3: 0.37, 1: 0.37, 0: 1.0}
    world.ask(slow, requests=20, tokens=64)
    assert set(world.tokens) == {0}
    world.ask(slow, requests=200, tokens=64)
    assert set(world.tokens) == {0, 1}
    assert world.speed > 0.98


@pytest.mark.parametrize("speed", [0.7, 0.95])
def test_beside_good_drafts_of_the_verifiers_own_a_new_client_is_never_a_percent_slower(speed: float) -> None:
    trial = SpeedTrials((3, 1, 0)).find(AT_HAND, break_even=550)
    assert trial is not None
    world = World(random.Random(1), trial=trial)
    slow = {3: speed, 1: speed, 0: 1.0}
    world.ask(slow, requests=3, tokens=64)
    assert set(world.tokens) == {0}
    world.ask(slow, requests=200, tokens=64)
    assert trial.way == 0 and world.speed > 0.98


def test_drafters_that_bring_more_than_the_verifiers_own_drafts_are_found_within_some_thousand_tokens() -> None:
    trial = SpeedTrials((3, 1, 0)).find(AT_HAND, break_even=550)
    assert trial is not None
    world = World(random.Random(1), trial=trial)
    world.ask({3: 1.3, 1: 1.3, 0: 1.0}, requests=60, tokens=64)
    assert trial.way != 0


def test_what_drafters_are_worth_to_easier_texts_does_not_let_them_try_harder_ones_beside_good_drafts() -> None:
    trials = SpeedTrials((3, 1, 0))
    assert trials.find(TrialPath.of("verifier", 0.0, 0.02)) is not None
    trial = trials.find(AT_HAND, break_even=550)
    assert trial is not None and trial.way == 0


def test_until_drafters_were_tried_whoever_coordinates_may_try_them() -> None:
    trial = SpeedTrials((3, 0)).find(AT_HAND, break_even=550)
    assert trial is not None
    count = DrafterCount(trial, left_tokens=64)
    assert count.allowed == 0 and count.may_pay
    assert SpeedTrial.of_state(trial.state(), (3, 0)).is_untried
    trial.end_stretch(10.0, worth=1.0)
    trial.end_look(3, 5.0, worth=1.0)
    trial.end_stretch(10.0, worth=1.0)
    assert not count.may_pay


def test_drafters_that_pay_though_drafts_are_dear_are_found() -> None:
    trial = SpeedTrials((3, 1, 0)).find(AT_HAND, break_even=900)
    assert trial is not None
    world = World(random.Random(1), trial=trial)
    world.ask({3: 2.0, 1: 2.0, 0: 1.0}, requests=60)
    assert trial.way != 0


def test_memory_is_bounded() -> None:
    trials = SpeedTrials((1, 0))
    first = trials.find(TrialPath.of("0", 0.0))
    for number in range(MAX_TRIALS):
        trials.find(TrialPath.of(str(number + 1), 0.0))
    assert trials.find(TrialPath.of("0", 0.0)) is not first


WAYS = (3, 1, 0)


def measured_trials() -> SpeedTrials:
    """Trials in which no drafters turned out to be the fastest way."""
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


@pytest.mark.parametrize(
    "change",
    [
        {"way": 7},
        {"way": None},
        {"gains": []},
        {"gains": {"3": [1.0], "1": [0.0, 0.0, 0.0]}},
        {"gains": {"3": [float("nan"), 0.0, 0.0], "1": [0.0, 0.0, 0.0]}},
        {"gains": {"3": [1.0, float("inf"), 0.0], "1": [0.0, 0.0, 0.0]}},
        {"pause": 0},
        {"stretches": -1},
        {"total_s": -1.0},
        {"spent_s": float("inf")},
        {"temperature": "hot"},
        {"server": 5},
        {"distance": "far"},
    ],
)
def test_a_broken_trial_is_left_out(change: dict[str, Any]) -> None:
    [state] = measured_trials().state()
    assert read_trials([state | change]).state() == []
    assert len(read_trials([state | change, state]).state()) == 1
    assert read_trials(5).state() == []
