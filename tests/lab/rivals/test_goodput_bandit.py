"""SPIN's bandit: accepted tokens per second of drafting, in periods."""

import random
from dataclasses import replace

import pytest

from cosine_lab.rivals.goodput_bandit import DraftedRounds, GoodputRouter
from tests.cosine_p2p.strategy.rounds import facts, joined, round_of


def test_goodput_is_accepted_tokens_per_second_of_drafting() -> None:
    router = joined(GoodputRouter(random.Random(1)), 1, 2)
    router.learn(replace(round_of((1,), {1: 3}), draft_s={1: 0.5}))
    router.learn(replace(round_of((1,), {1: 1}), draft_s={1: 0.5}))
    assert router.goodputs() == {1: pytest.approx(4.0), 2: 0.0}


def test_a_slow_drafter_is_worth_less_than_a_fast_one_that_is_accepted_less() -> None:
    router = joined(GoodputRouter(random.Random(1), explore_rounds=2), 1, 2)
    router.learn(replace(round_of((1,), {1: 4}), draft_s={1: 1.0}))
    router.learn(replace(round_of((2,), {2: 2}), draft_s={2: 0.1}))
    assert router.pick(2) == (2, 1)


def test_only_the_used_author_is_learned_about() -> None:
    router = joined(GoodputRouter(random.Random(1)), 1, 2)
    router.learn(round_of((1, 2), {1: 0, 2: 4}))
    assert router.goodputs()[2] == 0.0


def test_periods_alternate_and_exploitation_grows() -> None:
    router = joined(GoodputRouter(random.Random(1), explore_rounds=2, exploit_rounds=3, growth=2.0), 1)
    periods = ""
    for _ in range(13):
        periods += "e" if "exploration" in router.why(1) else "x"
        router.learn(round_of((1,), {1: 1}))
    assert periods == "eexxxeexxxxxx"


def test_exploration_takes_the_least_tried() -> None:
    router = joined(GoodputRouter(random.Random(1), explore_rounds=9), 1, 2, 3)
    seen = []
    for _ in range(6):
        [author] = router.pick(1)
        seen.append(author)
        router.learn(round_of((author,), {author: 1}))
    assert sorted(seen[:3]) == sorted(seen[3:]) == [1, 2, 3]


def test_a_prior_stands_for_rounds_of_evidence() -> None:
    router = GoodputRouter(random.Random(1), explore_rounds=0, prior_rounds=2.0)
    router.join(1, facts(prompt_nll=1.0, token_s=0.01))
    assert router.goodputs() == {1: pytest.approx(100.0)}


def test_what_is_known_of_an_author_stands_for_as_many_rounds_and_is_exploited_first() -> None:
    router = GoodputRouter(random.Random(1), explore_rounds=2, prior_rounds=2.0)
    router.join(1, facts(prompt_nll=1.0, token_s=0.01), DraftedRounds(rounds=4.0, tokens=8.0, draft_s=1.0))
    assert router.goodputs() == {1: pytest.approx(8.0)}
    assert "exploitation" in router.why(1)
    router.learn(replace(round_of((1,), {1: 0}), draft_s={1: 0.5}))
    assert router.goodputs() == {1: pytest.approx(4.0)}


def test_without_a_prior_earlier_requests_count_for_nothing() -> None:
    router = GoodputRouter(random.Random(1), explore_rounds=2)
    router.join(1, facts(prompt_nll=1.0, token_s=0.01), DraftedRounds(rounds=4.0, tokens=8.0, draft_s=1.0))
    assert router.goodputs() == {1: 0.0}
    assert "exploration" in router.why(1)
