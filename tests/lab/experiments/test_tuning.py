"""Coordinate descent over small grids: what it keeps, what it may cost, what it never tries."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cosine_lab.experiments import tuning
from cosine_lab.experiments.entrants import ENTRANTS, OptionValues
from cosine_lab.experiments.tuning import Place, Score, Search, climbed, swept, tune

GRID = {"length": (1, 2, 3, 4, 5), "width": (1, 2, 3)}


def anything(choice: OptionValues) -> bool:
    return bool(choice)


def distance(choice: OptionValues) -> float:
    return float(abs(choice["length"] - 4) + abs(choice["width"] - 3))


def test_a_sweep_finds_the_best_of_each_option() -> None:
    assert swept({"length": 1, "width": 1}, GRID, distance, allows=anything) == {"length": 4, "width": 3}


def test_a_tie_keeps_what_there_was() -> None:
    assert swept({"length": 2, "width": 2}, GRID, lambda choice: 1.0, allows=anything) == {"length": 2, "width": 2}


def test_what_is_not_allowed_is_never_scored() -> None:
    scored: list[OptionValues] = []

    def score(choice: OptionValues) -> float:
        scored.append(choice)
        return distance(choice)

    start = {"length": 1, "width": 1}
    swept(start, GRID, score, allows=lambda choice: choice["width"] < 3)
    climbed(start, GRID, score, allows=lambda choice: choice["width"] < 3, trials=9)
    assert all(choice["width"] < 3 for choice in scored)


def test_a_climb_goes_on_while_it_helps() -> None:
    assert climbed({"length": 1, "width": 2}, GRID, distance, allows=anything, trials=99) == {
        "length": 4,
        "width": 3,
    }


def test_every_option_gets_a_step_each_way_before_any_gets_a_second() -> None:
    tried: list[OptionValues] = []

    def score(choice: OptionValues) -> float:
        tried.append(choice)
        return distance(choice)

    climbed({"length": 2, "width": 2}, GRID, score, allows=anything, trials=2)
    assert {"length": 3, "width": 3} in tried


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
