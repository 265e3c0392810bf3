"""Coordinate descent over small grids: its result, its cost, and its limits."""

from hypothesis import given
from hypothesis import strategies as st

from cosine_lab.experiments.entrants import OptionValues
from cosine_lab.experiments.tuning import climbed

GRID = {"length": (1, 2, 3, 4, 5), "width": (1, 2, 3)}


@given(
    start=st.fixed_dictionaries({name: st.sampled_from(values) for name, values in GRID.items()}),
    scores=st.lists(st.floats(0, 1), min_size=15, max_size=15),
    trials=st.integers(0, 8),
)
def test_a_climb_is_never_worse_than_its_start_and_within_its_trials(
    start: dict[str, int], scores: list[float], trials: int
) -> None:
    tried: set[int] = set()

    def score(choice: OptionValues) -> float:
        place: int = 3 * (choice["length"] - 1) + choice["width"] - 1
        tried.add(place)
        return scores[place]

    best = climbed(start, GRID, score, allows=bool, trials=trials)
    assert score(best) <= score(start)
    assert len(tried) <= trials + 1
