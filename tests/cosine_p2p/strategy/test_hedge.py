"""Our router: full information, few trials, and a new start when the request changes its subject."""

import random

import pytest

from cosine_p2p.strategy.router import ALARM_NATS, HedgeRouter, LeaderWatch
from tests.cosine_p2p.strategy.rounds import facts, joined, play, round_of, share_of


def test_the_prompt_decides_until_there_is_evidence() -> None:
    router = HedgeRouter()
    router.join(1, facts(prompt_nll=3.0))
    router.join(2, facts(prompt_nll=1.0))
    assert router.pick(2) == (2, 1)
    for _ in range(3):
        router.learn(round_of((2, 1), {1: 3, 2: 0}))
    assert router.pick(1) == (1,)


def test_the_nearest_goes_first_only_among_equals() -> None:
    router = HedgeRouter()
    router.join(1, facts(rtt_s=0.2))
    router.join(2, facts(rtt_s=0.01))
    assert router.pick(1) == (2,)
    for _ in range(5):
        router.learn(round_of((2, 1), {1: 3, 2: 1}))
    assert router.pick(1) == (1,)


def test_an_author_learns_from_rounds_in_which_it_was_not_used() -> None:
    router = joined(HedgeRouter(), 1, 2)
    before = router.weights()[2]
    router.learn(round_of((1, 2), {1: 0, 2: 4}))
    assert router.weights()[2] > before


def test_copies_of_a_drafter_gain_nothing() -> None:
    chance = random.Random(5)
    router = joined(HedgeRouter(), *range(1, 7))
    skill = {1: 0.8} | dict.fromkeys(range(2, 7), 0.4)
    assert share_of(1, play(router, skill, rounds=60, active=3, chance=chance)[20:]) > 0.9
    weights = router.weights()
    assert sum(weights[copy] for copy in range(2, 7)) < 0.1


def test_trials_of_the_only_slot_are_rare_while_the_leader_predicts_well() -> None:
    chance = random.Random(2)
    router = joined(HedgeRouter(), 1, 2, 3, 4)
    play(router, {1: 0.9, 2: 0.5, 3: 0.5, 4: 0.5}, rounds=10, active=4, chance=chance)
    picks = play(router, {1: 0.9, 2: 0.5, 3: 0.5, 4: 0.5}, rounds=100, active=1, chance=chance)
    assert 0.9 < share_of(1, picks) < 1.0


@pytest.mark.parametrize(("active", "within_rounds"), [(3, 20), (2, 30), (1, 90)])
@pytest.mark.parametrize("seed", range(5))
def test_a_change_of_subject_is_followed(active: int, within_rounds: int, seed: int) -> None:
    chance = random.Random(seed)
    router = joined(HedgeRouter(), *range(1, 7))
    poor = dict.fromkeys(range(1, 7), 0.1)
    before = play(router, poor | {1: 0.8}, rounds=60, active=active, chance=chance)
    assert share_of(1, before[30:]) > 0.8
    after = play(router, poor | {6: 0.8}, rounds=within_rounds + 30, active=active, chance=chance)
    assert share_of(6, after[within_rounds:]) > 0.8


def test_who_joins_late_does_not_lead_unheard() -> None:
    chance = random.Random(3)
    router = joined(HedgeRouter(), 1, 2)
    play(router, {1: 0.8, 2: 0.2}, rounds=40, active=2, chance=chance)
    router.join(3, facts())
    assert router.pick(2) == (1, 3)
    later = play(router, {1: 0.3, 2: 0.2, 3: 0.9}, rounds=60, active=3, chance=chance)
    assert share_of(3, later[30:]) > 0.8


def test_the_pick_does_not_change_what_is_known() -> None:
    router = joined(HedgeRouter(), 1, 2, 3)
    router.learn(round_of((1, 2), {1: 2, 2: 0}))
    assert {router.pick(2) for _ in range(20)} == {router.pick(2)}


def test_a_collapse_is_seen_soon_and_steady_text_is_not_one() -> None:
    watch = LeaderWatch()
    for _ in range(200):
        watch.note(0.6)
        watch.note(0.3)
    assert not watch.has_collapsed
    misses = 0
    while not watch.has_collapsed:
        watch.note(0.02)
        misses += 1
    assert misses <= ALARM_NATS
    watch.rearm()
    assert not watch.has_collapsed
