"""Coordinate descent over small grids: what it keeps, what it may cost, what it never tries."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cosine_lab.experiments import tuning
from cosine_lab.experiments.entrants import ENTRANTS, OptionValues
from cosine_lab.experiments.tuning import Place, Score, Search, climbed, tune

GRID = {"length": (1, 2, 3, 4, 5), "width": (1, 2, 3)}


def anything(choice: OptionValues) -> bool:
    return bool(choice)


def distance(choice: OptionValues) -> float:
    return float(abs(choice["length"] - 4) + abs(choice["width"] - 3))


@given(
    start=st.fixed_dictionaries({name: st.sampled_from(values) for name, values in GRID.items()}),
    scores=st.lists(st.floats(0, 1), min_size=15, max_size=15),
    trials=st.integers(0, 8),
)
def test_a_climb_is_never_worse_than_its_start_and_within_its_trials(
    start: dict[str, int], scores: list[float], trials: int
) -> None:
    tried: set[tuple[int, int]] = set()

    def score(choice: OptionValues) -> float:
        tried.add((choice["length"], choice["width"]))
        place: int = 3 * (choice["length"] - 1) + choice["width"] - 1
        return scores[place]

    best = climbed(start, GRID, score, allows=anything, trials=trials)
    assert score(best) <= score(start)
    assert len(tried) <= trials + 1


def test_where_an_option_is_the_outer_one_the_others_are_swept_for_each_of_its_values(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Two options that only help together: neither of them alone would move."""

    def seconds(search: Search, place: Place) -> Score:
        return lambda choice: 1.0 if (choice["depth_tokens"], choice["width_nodes"]) == (3, 4) else 2.0

    monkeypatch.setattr(tuning, "_scored", seconds)
    place = Place("60/6", 20.0, 0.0)
    search = Search(strategy="specinfer", seed=0, first=place, branches=(), prompts=1, tokens=6, trials=0)
    found = tune(search)[place]
    assert (found["depth_tokens"], found["width_nodes"]) == (3, 4)


def test_points_are_tuned_one_from_the_other() -> None:
    near, far = Place("60/6", 20.0, 0.0), Place("60/6", 50.0, 0.0)
    search = Search(
        strategy="speculative", seed=0, first=near, branches=((far,), ()), prompts=1, tokens=6, trials=0
    )
    found = tune(search)
    assert found[near] == found[far]
    assert found[near].keys() == ENTRANTS["speculative"].start.keys()
    assert str(search) == "tuned speculative at 2 points"
