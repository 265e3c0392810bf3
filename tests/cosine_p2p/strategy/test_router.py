"""Our router: full information, few trials, and a new start when the request changes its subject."""

import math
import random

import pytest

from cosine_p2p.strategy.moving_average import moving_average
from cosine_p2p.strategy.router import ALARM_NATS, MEMORY_TOKENS, PRIOR_NATS, HedgeRouter, LeaderWatch, Mixture
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


def mixture_of(*authors: int, prompt_nll: float = 1.0) -> Mixture:
    mixture = Mixture()
    for author in authors:
        mixture.join(author, prompt_nll=prompt_nll)
    return mixture


def test_nobody_has_no_weight() -> None:
    mixture = Mixture()
    mixture.observe({1: 0.5})
    assert mixture.weights() == {}


def test_equals_start_equal_and_the_prompt_decides_between_others() -> None:
    assert mixture_of(1, 2).weights() == {1: 0.5, 2: 0.5}
    mixture = mixture_of(1)
    mixture.join(2, prompt_nll=2.5)
    assert mixture.weights()[1] > 0.95


def test_a_claim_to_know_the_prompt_is_worth_a_few_tokens_at_most() -> None:
    mixture = mixture_of(1, prompt_nll=8.0)
    mixture.join(2, prompt_nll=0.0)
    assert mixture.weights()[2] == pytest.approx(1 / (1 + math.exp(-PRIOR_NATS)), rel=1e-3)
    for _ in range(3):
        mixture.observe({1: 0.6, 2: 0.0})
    assert mixture.weights()[1] > 0.9


def test_a_change_of_domain_changes_the_weights() -> None:
    mixture = mixture_of(1, 2)
    for _ in range(10 * MEMORY_TOKENS):
        mixture.observe({1: 0.9, 2: 0.2})
    assert mixture.weights()[1] > 0.99
    for _ in range(2 * MEMORY_TOKENS):
        mixture.observe({1: 0.2, 2: 0.9})
    assert mixture.weights()[2] > 0.99


def test_a_silent_author_keeps_its_weight_relative_to_the_mixture() -> None:
    mixture = mixture_of(1, 2, 3)
    mixture.observe({1: 0.9, 2: 0.3})
    weights = mixture.weights()
    assert weights[3] == pytest.approx(1 / 3)
    assert weights[1] / weights[2] == pytest.approx(3.0)


def test_whoever_joins_late_stands_where_a_sleeper_would() -> None:
    early, late = mixture_of(1, 2, 3), mixture_of(1, 2)
    for _ in range(20):
        early.observe({1: 0.5, 2: 0.05})
        late.observe({1: 0.5, 2: 0.05})
    late.join(3, prompt_nll=1.0)
    assert late.weights() == pytest.approx(early.weights())


@pytest.mark.parametrize("seed", range(20))
def test_weights_are_a_distribution_whatever_is_claimed(seed: int) -> None:
    rng = random.Random(seed)
    mixture = Mixture()
    present = set[int]()
    for _ in range(200):
        author = rng.randrange(5)
        match rng.randrange(4):
            case 0:
                mixture.join(author, prompt_nll=rng.choice([0.0, 1.0, 1e6]))
                present.add(author)
            case 1:
                mixture.leave(author)
                present.discard(author)
            case _:
                mixture.observe({a: rng.choice([0.0, 0.5, 1.0, 2.0]) for a in rng.sample(range(6), 3)})
        weights = mixture.weights()
        assert not weights or sum(weights.values()) == pytest.approx(1.0), f"seed {seed}"
        assert all(0.0 <= weight <= 1.0 for weight in weights.values()), f"seed {seed}"
        assert set(weights) == present, f"seed {seed}"


def test_samples_count_with_their_weight() -> None:
    assert moving_average(None, 3.0, weight=0.1) == 3.0
    assert moving_average(2.0, 4.0, weight=0.25) == 2.5
    assert moving_average(1.0, False, weight=0.5) == 0.5
