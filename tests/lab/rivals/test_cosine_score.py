"""The CoSine paper's score: confidence alone is not enough, and short acceptance means exploration."""

import random
from dataclasses import replace

import pytest

from cosine_lab.rivals.cosine_score import CosineScoreRouter
from tests.cosine_p2p.strategy.rounds import facts, joined, round_of


def calm(*, smoothing: float = 0.3) -> CosineScoreRouter:
    return joined(
        CosineScoreRouter(random.Random(1), explore_share=0.0, exploit_share=0.0, smoothing=smoothing), 1, 2
    )


def test_confidence_without_agreement_counts_for_nothing() -> None:
    router = calm()
    boast = replace(round_of((1, 2), {1: 0, 2: 3}), confidence={1: 1.0, 2: 0.4})
    router.learn(boast)
    assert router.pick(2) == (2, 1)
    assert router.why(1) == "score 0.00 after 1 rounds"


def test_the_score_is_the_smoothed_harmonic_mean() -> None:
    router = calm(smoothing=0.25)
    router.learn(replace(round_of((1,), {1: 4}), confidence={1: 0.5}, agreement={1: 1.0}))
    assert router.why(1).startswith("score 0.67")
    router.learn(replace(round_of((1,), {1: 0}), confidence={1: 0.5}, agreement={1: 0.0}))
    assert router.why(1).startswith("score 0.50")


@pytest.mark.parametrize(("accepted", "expected"), [(1, 2), (3, 1)])
def test_a_short_acceptance_sends_the_least_tried(accepted: int, expected: int) -> None:
    router = CosineScoreRouter(
        random.Random(1), explore_share=1.0, exploit_share=0.0, short_tokens=2.0, untried_score=0.0
    )
    joined(router, 1, 2)
    router.learn(round_of((1,), {1: accepted}))
    assert router.pick(1) == (expected,)


def test_the_prompt_may_give_the_first_scores() -> None:
    router = CosineScoreRouter(random.Random(1), explore_share=0.0, exploit_share=0.0, has_prior=True)
    router.join(1, facts(prompt_nll=2.0))
    router.join(2, facts(prompt_nll=1.0))
    assert router.pick(2) == (2, 1)
