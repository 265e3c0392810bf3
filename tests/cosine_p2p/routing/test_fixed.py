"""A given order, as far as it is present."""

from cosine_p2p.routing.fixed import FixedRouter
from tests.cosine_p2p.routing.rounds import joined, round_of


def test_the_order_holds_whatever_happens() -> None:
    router = joined(FixedRouter([3, 1, 3, 2]), 1, 2, 3)
    router.learn(round_of((3, 1), {3: 0, 1: 4}))
    assert router.pick(2) == (3, 1)
    router.leave(3)
    assert router.pick(9) == (1, 2)


def test_an_author_outside_the_order_is_never_picked() -> None:
    router = joined(FixedRouter([1]), 1, 2)
    assert router.pick(2) == (1,)
    assert [router.why(author) for author in (1, 2)] == ["number 1 in the given order", "not in the given order"]
