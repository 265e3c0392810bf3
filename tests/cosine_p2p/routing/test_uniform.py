"""Chance favours nobody."""

import random
from collections import Counter

from cosine_p2p.routing.uniform import UniformRouter
from tests.cosine_p2p.routing.rounds import joined


def test_every_author_is_as_likely_as_any_other() -> None:
    router = joined(UniformRouter(random.Random(7)), 1, 2, 3, 4)
    first = Counter(router.pick(2)[0] for _ in range(4000))
    assert all(900 < first[author] < 1100 for author in (1, 2, 3, 4))


def test_the_same_seed_gives_the_same_picks() -> None:
    one, other = (joined(UniformRouter(random.Random(3)), 1, 2, 3) for _ in range(2))
    assert [one.pick(3) for _ in range(20)] == [other.pick(3) for _ in range(20)]
