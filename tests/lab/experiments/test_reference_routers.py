"""Routers to compare with: a given order, uniform chance and UCB1."""

import random
from collections import Counter

from cosine_lab.experiments.reference_routers import FixedRouter, UcbRouter, UniformRouter
from tests.cosine_p2p.strategy.rounds import facts, joined, round_of


def test_the_order_holds_whatever_happens() -> None:
    router = joined(FixedRouter([3, 1, 3, 2]), 1, 2, 3)
    router.learn(round_of((3, 1), {3: 0, 1: 4}))
    assert router.pick(2) == (3, 1)
    router.leave(3)
    assert router.pick(9) == (1, 2)


def test_an_author_outside_the_order_is_never_picked() -> None:
    router = joined(FixedRouter([1]), 1, 2)
    assert router.pick(2) == (1,)
    assert [router.why(author) for author in (1, 2)] == ["number 1", "never picked"]


def test_every_author_is_as_likely_as_any_other() -> None:
    router = joined(UniformRouter(random.Random(7)), 1, 2, 3, 4)
    first = Counter(router.pick(2)[0] for _ in range(4000))
    assert all(900 < first[author] < 1100 for author in (1, 2, 3, 4))


def test_the_same_seed_gives_the_same_picks() -> None:
    one, other = (joined(UniformRouter(random.Random(3)), 1, 2, 3) for _ in range(2))
    assert [one.pick(3) for _ in range(20)] == [other.pick(3) for _ in range(20)]


def test_everyone_is_tried_once_first() -> None:
    router = joined(UcbRouter(), 1, 2, 3)
    seen = []
    for _ in range(3):
        [author] = router.pick(1)
        seen.append(author)
        router.learn(round_of((author,), {author: 4}))
    assert seen == [1, 2, 3]


def test_width_is_what_is_paid_for_uncertainty() -> None:
    greedy, curious = (joined(UcbRouter(width=width), 1, 2) for width in (1e-6, 50.0))
    for router in (greedy, curious):
        router.learn(round_of((2,), {2: 1}))
        for _ in range(10):
            router.learn(round_of((1,), {1: 3}))
    assert (greedy.pick(1), curious.pick(1)) == ((1,), (2,))


def test_with_a_prior_nobody_needs_to_be_tried() -> None:
    router = UcbRouter(width=0.01, prior_rounds=4.0)
    router.join(1, facts(prompt_nll=3.0))
    router.join(2, facts(prompt_nll=1.0))
    assert router.pick(1) == (2,)
