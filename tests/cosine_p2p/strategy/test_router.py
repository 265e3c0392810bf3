"""Tests of the router and of moving averages."""

import random

import pytest

from cosine_p2p.strategy.base import DrafterStarted
from cosine_p2p.strategy.router import HedgeRouter


def test_the_prompt_decides_until_there_is_evidence() -> None:
    router = HedgeRouter()
    for author, prompt_nll in ((1, 3.0), (2, 1.0)):
        router.join(DrafterStarted(author, prompt_nll=prompt_nll, token_s=0.002, rtt_s=0.03))
    assert router.ranked() == [2, 1]
    for _ in range(3):
        router.learn([{1: 0.7, 2: 0.05}])
    assert router.ranked() == [1, 2]


@pytest.mark.parametrize("right_tokens", [0, 60])
def test_a_lone_drafter_that_is_wrong_soon_falls_behind_a_silent_one(right_tokens: int) -> None:
    router = HedgeRouter()
    for author, prompt_nll in ((1, 1.0), (2, 9.0)):
        router.join(DrafterStarted(author, prompt_nll=prompt_nll, token_s=0.002, rtt_s=0.03))
    router.learn([{1: 0.9}] * right_tokens)
    assert router.ranked() == [1, 2]
    for _ in range(8):
        router.learn([{1: 0.0}])
    assert router.ranked() == [2, 1]


def joined(author: int, prompt_nll: float) -> DrafterStarted:
    return DrafterStarted(author, prompt_nll=prompt_nll, token_s=0.002, rtt_s=0.03)


@pytest.mark.parametrize("seed", range(4))
def test_weights_are_a_distribution_whatever_is_claimed(seed: int) -> None:
    rng = random.Random(seed)
    router = HedgeRouter()
    present = set[int]()
    for _ in range(200):
        author = rng.randrange(5)
        match rng.randrange(4):
            case 0:
                router.join(joined(author, rng.choice([0.0, 1.0, 1e6])))
                present.add(author)
            case 1:
                router.leave(author)
                present.discard(author)
            case _:
                router.learn([{a: rng.choice([0.0, 0.5, 1.0, 2.0]) for a in rng.sample(range(6), 3)}])
        weights = router.weights()
        assert not weights or sum(weights.values()) == pytest.approx(1.0), f"seed {seed}"
        assert all(0.0 <= weight <= 1.0 for weight in weights.values()), f"seed {seed}"
        assert set(weights) == present, f"seed {seed}"
