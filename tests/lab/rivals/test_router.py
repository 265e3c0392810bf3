"""What every router owes, whatever it decides by."""

import os
import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cosine_lab.rivals.cosine_paper import CosineScoreRouter
from cosine_lab.rivals.router import RequestChance, Router
from cosine_lab.rivals.spin import GoodputRouter
from cosine_p2p.strategy.router import HedgeRouter
from tests.cosine_p2p.strategy.rounds import facts, joined, play, round_of, share_of

AUTHORS = range(1, 7)
ROUTERS: list[Callable[[random.Random], Router]] = [
    lambda chance: HedgeRouter(),
    lambda chance: CosineScoreRouter(chance),
    lambda chance: CosineScoreRouter(chance, has_prior=True),
    lambda chance: GoodputRouter(chance),
    lambda chance: GoodputRouter(chance, prior_rounds=2.0, growth=2.0, forgetting=0.1),
]
LEARNERS: list[Callable[[random.Random], Router]] = [
    lambda chance: HedgeRouter(),
    lambda chance: CosineScoreRouter(chance),
    lambda chance: GoodputRouter(chance),
]


@pytest.mark.parametrize("make", ROUTERS)
@given(data=st.data())
def test_picks_are_different_present_authors_whatever_happens(
    make: Callable[[random.Random], Router], data: st.DataObject
) -> None:
    chance = random.Random(data.draw(st.integers(0, 1000)))
    router, present = make(chance), set[int]()
    for _ in range(data.draw(st.integers(1, 30))):
        author = chance.choice(AUTHORS)
        match chance.randrange(4):
            case 0:
                router.join(author, facts(prompt_nll=chance.choice([0.0, 1.0, 4.0])))
                present.add(author)
            case 1:
                router.leave(author)
                present.discard(author)
            case _:
                chosen = chance.sample(AUTHORS, chance.randrange(1, 4))
                router.learn(round_of(chosen, {a: chance.randrange(5) for a in chosen}))
        count = chance.randrange(8)
        picked = router.pick(count)
        assert len(picked) == len(set(picked)) == min(count, len(present))
        assert present.issuperset(picked)
        assert all(router.why(author) for author in present)


@pytest.mark.parametrize("make", LEARNERS)
@pytest.mark.parametrize("active", [1, 3])
@pytest.mark.parametrize("seed", range(3))
def test_who_always_misses_is_left_and_who_is_right_is_found(
    make: Callable[[random.Random], Router], active: int, seed: int
) -> None:
    chance = random.Random(seed)
    router = joined(make(chance), 1, 2, 3)
    picks = play(router, {1: 0.0, 2: 0.3, 3: 0.8}, rounds=100, active=active, chance=chance)
    late = picks[60:]
    assert share_of(1, late) <= 0.2
    assert share_of(3, late) > 0.6


def test_picks_do_not_depend_on_the_hash_seed() -> None:
    code = (
        "import random;"
        "from cosine_p2p.strategy.router import HedgeRouter;"
        "from cosine_lab.rivals.cosine_paper import CosineScoreRouter;"
        "from tests.cosine_p2p.strategy.rounds import joined, play;"
        "routers = HedgeRouter(), CosineScoreRouter(random.Random(1));"
        "skill = {1: 0.2, 2: 0.5, 3: 0.5, 4: 0.7};"
        "print([play(joined(r, *skill), skill, rounds=40, active=3, chance=random.Random(2)) for r in routers])"
    )

    def printed(hash_seed: str) -> str:
        done = subprocess.run(
            [sys.executable, "-c", code],
            capture_output=True,
            text=True,
            check=True,
            cwd=Path(__file__).parents[3],
            env=os.environ | {"PYTHONHASHSEED": hash_seed},
        )
        return done.stdout

    assert printed("1") == printed("2") != ""


def test_one_request_is_one_series_and_another_is_another() -> None:
    first, again, other = RequestChance(bytes(16)), RequestChance(bytes(16)), RequestChance(b"\1" * 16)
    series = [first.random() for _ in range(8)]
    assert series == [again.random() for _ in range(8)]
    assert series != [other.random() for _ in range(8)]
