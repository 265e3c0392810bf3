"""UCB1: everyone once, then optimism in the face of uncertainty."""

from cosine_p2p.routing.ucb import UcbRouter
from tests.cosine_p2p.routing.rounds import facts, joined, round_of


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
