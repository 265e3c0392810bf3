"""The best options of a strategy for each point of a sweep, found by coordinate descent on the split "tune"."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from cosine_lab.experiments.entrants import OptionValues, entrant
from cosine_lab.experiments.experiment import TUNE_SPLIT, Cell, Prompts, run_cell

Score = Callable[[OptionValues], float]
Grid = Mapping[str, tuple[Any, ...]]


class TuningPlace(NamedTuple):
    """A point of a sweep; its fields are those of a `Scenario`."""

    profile: str
    rtt_ms: float
    temperature: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Search:
    """A strategy to tune at places: a first one, and branches that lead away from it.

    At the first every option is swept in turn, for each value of the entrant's `outer` option, if any. It and every
    other place, which begins with the result of the one before in its branch, then get at most `trials` trials of
    neighbours. A trial runs the first `prompts` prompts for `tokens` tokens each.
    """

    strategy: str
    seed: int
    first: TuningPlace
    branches: tuple[tuple[TuningPlace, ...], ...]
    prompts: int
    tokens: int
    trials: int

    def __str__(self) -> str:
        return f"tuned {self.strategy} at {1 + sum(map(len, self.branches))} points"


def tune(search: Search) -> dict[TuningPlace, OptionValues]:
    """Return the best table of option values for each place."""
    plays = entrant(search.strategy)
    grid = plays.grid_at(search.first.temperature)
    start = {name: plays.start.get(name, values[0]) for name, values in grid.items()}
    score = _scored(search, search.first)
    inner = {name: values for name, values in grid.items() if name != plays.outer}
    starts = [dict(start) | {plays.outer: value} for value in grid[plays.outer]] if plays.outer else [start]
    best = min((swept(one, inner, score, allows=plays.allows) for one in starts), key=score)
    found = {search.first: climbed(best, grid, score, allows=plays.allows, trials=search.trials)}
    for branch in search.branches:
        before = search.first
        for place in branch:
            score = _scored(search, place)
            found[place] = climbed(found[before], grid, score, allows=plays.allows, trials=search.trials)
            before = place
    return found


def _scored(search: Search, place: TuningPlace) -> Score:
    """Measures the seconds of the tuning prompts under a table of option values; each is run once."""
    known: dict[str, float] = {}

    def seconds(choice: OptionValues) -> float:
        key = repr(sorted(choice.items()))
        if key not in known:
            cell = Cell(
                strategy=search.strategy,
                choice=choice,
                scenario={
                    **place._asdict(),
                    "seed": search.seed,
                    "max_new_tokens": search.tokens,
                },
                prompts=Prompts(split=TUNE_SPLIT, count=search.prompts),
            )
            known[key] = run_cell(cell).total_s
        return known[key]

    return seconds


def swept(start: OptionValues, grid: Grid, score: Score, *, allows: Callable[[OptionValues], bool]) -> OptionValues:
    """Try every value of every option, one option after the other, and keep the best of each."""
    best = start
    for name, values in grid.items():
        tried = [dict(best) | {name: value} for value in values]
        # The present value comes first, so that it stays on a tie.
        best = min([best, *filter(allows, tried)], key=score)
    return best


def climbed(
    start: OptionValues, grid: Grid, score: Score, *, allows: Callable[[OptionValues], bool], trials: int
) -> OptionValues:
    """Take steps to neighbouring values while they help, at most `trials`.

    Every option gets a step each way before any gets a second.
    """
    best, has_moved = start, True
    while has_moved:
        has_moved = False
        for name, values in grid.items():
            for step in (1, -1):
                index = values.index(best[name]) + step
                if not 0 <= index < len(values) or not allows(choice := dict(best) | {name: values[index]}):
                    continue
                if not trials:
                    return best
                trials -= 1
                if score(choice) < score(best):
                    best, has_moved = choice, True
                    break
    return best
