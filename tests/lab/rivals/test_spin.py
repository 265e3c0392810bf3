"""Drafters by goodput: tried in turn, then the best; several requests share them within their places."""

import math
import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cosine_lab.rivals.spin import DraftedRounds, GoodputRouter, Spin, SpinDirector, SpinOptions, assign
from cosine_p2p.strategy.base import Action, SendAssign, SendTree, VerifierOpened
from tests.cosine_p2p.strategy.rounds import facts, joined, round_of
from tests.cosine_p2p.strategy.script import ROOT, committed, drafted, started


def worth(values: Sequence[Sequence[float]], chosen: Sequence[int | None]) -> float:
    return sum(row[drafter] for row, drafter in zip(values, chosen, strict=True) if drafter is not None)


def fits(chosen: Sequence[int | None], capacities: Sequence[int]) -> bool:
    taken = Counter(drafter for drafter in chosen if drafter is not None)
    return all(taken[drafter] <= places for drafter, places in enumerate(capacities))


def best_worth(values: Sequence[Sequence[float]], capacities: Sequence[int]) -> float:
    options = [None, *range(len(capacities))]
    every = product(options, repeat=len(values))
    return max(worth(values, chosen) for chosen in every if fits(chosen, capacities))


@st.composite
def problems(draw: st.DrawFn) -> tuple[list[list[float]], list[int]]:
    drafters = draw(st.integers(0, 3))
    value = st.one_of(st.integers(-3, 6).map(float), st.floats(-10, 10))
    row = st.lists(value, min_size=drafters, max_size=drafters)
    values = draw(st.lists(row, max_size=4))
    return values, draw(st.lists(st.integers(0, 3), min_size=drafters, max_size=drafters))


@given(problems())
def test_no_assignment_is_worth_more(problem: tuple[list[list[float]], list[int]]) -> None:
    values, capacities = problem
    chosen = assign(values, capacities)
    assert len(chosen) == len(values)
    assert fits(chosen, capacities)
    assert worth(values, chosen) == pytest.approx(best_worth(values, capacities), abs=1e-9)


def test_the_second_best_drafter_is_taken_where_the_best_is_needed_more() -> None:
    assert assign([[5.0, 4.0], [5.0, 1.0]], [1, 1]) == (1, 0)
    assert assign([[5.0, 4.0], [5.0, 1.0]], [2, 1]) == (0, 0)


def test_a_worthless_pair_is_not_made() -> None:
    assert assign([[0.0, -1.0], [-math.inf, math.nan]], [1, 1]) == (None, None)


def test_goodput_is_accepted_tokens_per_second_of_drafting() -> None:
    router = joined(GoodputRouter(random.Random(1)), 1, 2)
    router.learn(replace(round_of((1,), {1: 3}), draft_s={1: 0.5}))
    router.learn(replace(round_of((1,), {1: 1}), draft_s={1: 0.5}))
    assert router.goodputs() == {1: pytest.approx(4.0), 2: 0.0}


def test_periods_alternate_and_exploitation_grows() -> None:
    router = joined(GoodputRouter(random.Random(1), explore_rounds=2, exploit_rounds=3, growth=2.0), 1)
    periods = ""
    for _ in range(13):
        periods += "e" if "exploration" in router.why(1) else "x"
        router.learn(round_of((1,), {1: 1}))
    assert periods == "eexxxeexxxxxx"


def test_what_is_known_of_an_author_stands_for_as_many_rounds_and_is_exploited_first() -> None:
    router = GoodputRouter(random.Random(1), explore_rounds=2, prior_rounds=2.0)
    router.join(1, facts(prompt_nll=1.0, token_s=0.01), DraftedRounds(rounds=4.0, tokens=8.0, draft_s=1.0))
    assert router.goodputs() == {1: pytest.approx(8.0)}
    assert "exploitation" in router.why(1)
    router.learn(replace(round_of((1,), {1: 0}), draft_s={1: 0.5}))
    assert router.goodputs() == {1: pytest.approx(4.0)}


CHAIN = SpinOptions(draft_tokens=2, explore_rounds=3, exploit_rounds=12)


def opened(
    director: SpinDirector | None = None, *, root: bytes = ROOT, drafters: int = 3, options: SpinOptions = CHAIN
) -> Spin:
    strategy = Spin(root, options=options, director=director)
    strategy.on(VerifierOpened(0.06, 0.01), 0.0)
    for author in range(1, drafters + 1):
        strategy.on(started(author), 0.0)
    return strategy


def asked(actions: list[Action]) -> int | None:
    """Who is to draft a chain."""
    return next((a.author for a in actions if isinstance(a, SendAssign) and a.window == 2), None)


def played(strategy: Spin, *, best: int, rounds: int) -> list[int]:
    """Who drafted in each round; one drafter is always right, the others never."""
    now_s, output, picked = 1.0, [5], []
    actions = strategy.on(committed([5]), now_s)
    for _ in range(rounds):
        author = asked(actions)
        assert author is not None
        picked.append(author)
        tokens = [7, 8] if author == best else [1, 2]
        [verify] = strategy.on(drafted(tokens, after=output, author=author), now_s + 0.03)
        assert isinstance(verify, SendTree)
        right = [7, 8, 9] if author == best else [7]
        now_s += 0.1
        actions = strategy.on(committed(right, after=output), now_s)
        output += right
    return picked


def test_everyone_is_tried_and_then_the_best_is_used() -> None:
    picked = played(opened(), best=2, rounds=15)
    assert set(picked[:3]) == {1, 2, 3}
    assert picked[3:] == [2] * 12


def test_what_one_request_learned_the_next_begins_with() -> None:
    director = SpinDirector(places=2)
    options = SpinOptions(draft_tokens=2, explore_rounds=3, exploit_rounds=12, prior_rounds=4.0)
    played(opened(director, options=options), best=2, rounds=6)
    assert played(opened(director, options=options), best=2, rounds=3) == [2, 2, 2]


def test_without_a_place_a_round_is_a_plain_pass() -> None:
    director = SpinDirector(places=1)
    director.place(b"other", {"1": 10.0}, 0.9)
    strategy = opened(director, drafters=1)
    actions = strategy.on(committed([5]), 1.0)
    assert asked(actions) is None
    assert isinstance(actions[-1], SendTree)


def test_two_requests_that_want_one_drafter_with_one_place_get_what_is_best_for_both() -> None:
    director = SpinDirector(places=1)
    assert director.place(b"a", {"x": 10.0, "y": 9.0}, 0.0) == "x"
    assert director.place(b"b", {"x": 10.0, "y": 1.0}, 0.1) == "x"
    assert director.place(b"a", {"x": 10.0, "y": 9.0}, 0.2) == "y"


def test_a_request_that_is_over_gives_its_place_back() -> None:
    director = SpinDirector(places=1)
    assert director.place(b"a", {"x": 10.0}, 0.0) == "x"
    assert director.place(b"b", {"x": 5.0}, 0.5) is None
    assert director.place(b"b", {"x": 5.0}, 2.6) == "x"


@given(st.lists(st.lists(st.floats(0.1, 100.0), min_size=3, max_size=3), min_size=1, max_size=6), st.integers(1, 3))
def test_no_drafter_has_more_requests_than_places(values: list[list[float]], places: int) -> None:
    director = SpinDirector(places=places)
    wishes = {bytes([n]): dict(zip("xyz", row, strict=True)) for n, row in enumerate(values)}
    for request, wish in wishes.items():
        director.place(request, wish, 0.0)
    placed = [director.place(request, wish, 0.0) for request, wish in wishes.items()]
    assert max(Counter(name for name in placed if name is not None).values()) <= places
    assert sum(name is not None for name in placed) == min(len(values), 3 * places)
