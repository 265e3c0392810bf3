"""The best options of a strategy for each point of a sweep, found by coordinate descent on the split "tune"."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cosine_node.bench.cells import TUNE, Cell, run_cell
from cosine_node.bench.entrants import Choice, entrant

Score = Callable[[Choice], float]
Grid = Mapping[str, tuple[Any, ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """A scenario to tune for; the search starts from the best of the point with the index `after`."""

    scenario: Mapping[str, Any]
    after: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Search:
    """A strategy to tune at points, of which each comes after the one it starts from.

    A point without a predecessor has every option swept in turn first; every point then gets `trials` trials next
    to where it stands. A trial runs the first `prompts` prompts for `tokens` tokens each.
    """

    strategy: str
    points: tuple[Point, ...]
    prompts: int
    tokens: int
    trials: int

    def __str__(self) -> str:
        return f"tuned {self.strategy} at {len(self.points)} points"


def tune(search: Search) -> list[Choice]:
    """The best choice found for each point."""
    plays = entrant(search.strategy)
    found: list[Choice] = []
    for point in search.points:
        grid = plays.choices_at(point.scenario.get("temperature", 0.0))
        first = {name: plays.start.get(name, values[0]) for name, values in grid.items()}
        score = _scored(search, point)
        if point.after is None:
            start = swept(first, grid, score, allows=plays.allows)
        else:
            start = {**first, **found[point.after]}
        found.append(climbed(start, grid, score, allows=plays.allows, trials=search.trials))
    return found


def _scored(search: Search, point: Point) -> Score:
    """Seconds that the tuning prompts take under a choice; every choice is run once."""
    known: dict[str, float] = {}

    def seconds(choice: Choice) -> float:
        key = repr(sorted(choice.items()))
        if key not in known:
            scenario = {**point.scenario, "max_new_tokens": search.tokens}
            cell = Cell(
                strategy=search.strategy, choice=choice, scenario=scenario, split=TUNE, prompts=search.prompts
            )
            known[key] = run_cell(cell).total_s
        return known[key]

    return seconds


def swept(start: Choice, grid: Grid, score: Score, *, allows: Callable[[Choice], bool]) -> Choice:
    """Every value of every option, one option after the other, the best of each kept."""
    best = start
    for name, values in grid.items():
        tried = [dict(best) | {name: value} for value in values]
        # The value held so far comes first, so that it stays on a tie.
        best = min([best, *filter(allows, tried)], key=score)
    return best


def climbed(start: Choice, grid: Grid, score: Score, *, allows: Callable[[Choice], bool], trials: int) -> Choice:
    """Steps to neighbouring values while they help, `trials` of them at most."""
    best = start
    left = trials
    for name, values in grid.items():
        for step in (1, -1):
            for choice in _beyond(best, name, values, step):
                if not allows(choice):
                    break
                if not left:
                    return best
                left -= 1
                if score(choice) >= score(best):
                    break
                best = choice
    return best


def _beyond(start: Choice, name: str, values: Sequence[Any], step: int) -> Iterator[Choice]:
    """`start` with the values of one option that lie ahead of its own, the nearest first."""
    index = values.index(start[name]) + step
    while 0 <= index < len(values):
        yield dict(start) | {name: values[index]}
        index += step
