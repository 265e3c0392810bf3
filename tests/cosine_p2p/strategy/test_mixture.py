"""A Bayesian mixture with sleeping experts: who predicts the request counts."""

import math
import random

import pytest

from cosine_p2p.strategy.router import MEMORY_TOKENS, PRIOR_NATS, Mixture


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


def test_the_expert_wins_against_a_better_start() -> None:
    mixture = mixture_of(1, prompt_nll=1.0)
    mixture.join(2, prompt_nll=0.5)
    for _ in range(20):
        mixture.observe({1: 0.8, 2: 0.1})
    assert mixture.weights()[1] > 0.99


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


def test_whoever_joins_late_has_to_prove_itself() -> None:
    mixture = mixture_of(1)
    for _ in range(20):
        mixture.observe({1: 0.5})
    mixture.join(2, prompt_nll=1.0)
    assert mixture.weights() == pytest.approx({1: 0.5, 2: 0.5})
    for _ in range(3):
        mixture.observe({1: 0.5, 2: 0.0})
    assert mixture.weights()[1] > 0.99


def test_copies_of_an_author_get_no_more_than_equal_shares() -> None:
    mixture = mixture_of(1, 2, 3)
    for _ in range(30):
        mixture.observe({1: 0.7, 2: 0.3, 3: 0.3})
    weights = mixture.weights()
    assert weights[2] == pytest.approx(weights[3])
    assert weights[1] > 0.99


@pytest.mark.parametrize("seed", range(40))
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
