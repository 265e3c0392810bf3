"""Who should draft? The routers compared on recorded generations, each with its best constants."""

import math
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from statistics import fmean, stdev
from typing import Any, Final

from cosine_node.bench.reference_routers import FixedRouter, UcbRouter, UniformRouter
from cosine_node.bench.routing_replay import (
    LATE_TOKENS,
    Request,
    Step,
    changing_traffic,
    mixed_traffic,
    replay,
)
from cosine_node.simulation.traces import TraceSet
from cosine_p2p.routing.base import Round, Router, prompt_shares
from cosine_p2p.routing.hedge import HedgeRouter
from cosine_p2p.strategies.published.cosine_score import CosineScoreRouter
from cosine_p2p.strategies.published.goodput_bandit import GoodputRouter


def best_in_hindsight(request: Request) -> int:
    """The author that alone needs the fewest rounds."""
    rounds = {author: len(replay(FixedRouter([author]), request, active=1)) for author in request.voices}
    return min(rounds, key=lambda author: (rounds[author], author))


class LabelRouter(FixedRouter):
    """Knows the domain of every position: what no router can be told, for comparison."""

    name = "expert-by-label"

    def __init__(self, request: Request) -> None:
        super().__init__(tuple(request.voices))
        self._request = request
        self._position = 0

    def pick(self, count: int) -> tuple[int, ...]:
        expert = self._request.expert_at(self._position)
        return tuple(sorted(super().pick(len(self._request.voices)), key=lambda author: author != expert))[:count]

    def learn(self, round_: Round) -> None:
        self._position += len(round_.spoken)


Constants = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Entrant:
    """A router in the comparison: how many drafters it keeps at work, and the constants to choose among."""

    name: str
    active: int
    make: Callable[[Request, random.Random, Constants], Router]
    grid: tuple[Constants, ...] = ({},)


def _grid(**options: Sequence[Any]) -> tuple[Constants, ...]:
    return tuple(dict(zip(options, values, strict=True)) for values in product(*options.values()))


_SCORE: Final[Mapping[str, Sequence[float]]] = {
    "explore_share": (0.1, 0.3, 0.6),
    "exploit_share": (0.0, 0.05),
    "short_tokens": (1.0, 2.0),
    "smoothing": (0.1, 0.3),
}
_GOODPUT: Final[Mapping[str, Sequence[float]]] = {
    "explore_rounds": (1, 2, 6),
    "exploit_rounds": (4, 16, 64),
    "growth": (1.0, 2.0),
    "forgetting": (0.0, 0.1),
}
_WIDTHS: Final = (0.02, 0.05, 0.1, 0.2, 0.5, 2.0)
_PRIOR_ROUNDS: Final = (1.0, 4.0, 16.0)


def _scored(request: Request, chance: random.Random, constants: Constants) -> Router:
    del request
    return CosineScoreRouter(chance, **constants)


def _goodput(request: Request, chance: random.Random, constants: Constants) -> Router:
    del request
    return GoodputRouter(chance, **constants)


def _ucb(request: Request, chance: random.Random, constants: Constants) -> Router:
    del request, chance
    return UcbRouter(**constants)


def _by_prompt(request: Request) -> Router:
    shares = prompt_shares(request.facts)
    return FixedRouter(sorted(shares, key=lambda author: -shares[author]))


def _generalist(request: Request) -> Router:
    return FixedRouter([author for author, model in request.models.items() if model.endswith("-general")])


REFERENCE: Final = Entrant("best-in-hindsight", 1, lambda r, _chance, _c: FixedRouter([best_in_hindsight(r)]))
OURS: Final = (
    *(Entrant("hedge", active, lambda _r, _chance, _c: HedgeRouter()) for active in (3, 2, 1)),
    Entrant("hedge-no-prior", 3, lambda _r, _chance, _c: HedgeRouter(has_prior=False)),
)
RIVALS: Final = (
    *(
        Entrant("cosine-score", active, _scored, _grid(**_SCORE, untried_score=(0.0, 0.5, 1.0)))
        for active in (1, 3)
    ),
    Entrant("goodput-bandit", 1, _goodput, _grid(**_GOODPUT)),
    Entrant("ucb", 1, _ucb, _grid(width=_WIDTHS)),
    Entrant("uniform", 1, lambda _r, chance, _c: UniformRouter(chance)),
    Entrant("generalist", 1, lambda r, _chance, _c: _generalist(r)),
)
RIVALS_WITH_PRIOR: Final = (
    *(Entrant("cosine-score+prior", active, _scored, _grid(**_SCORE, has_prior=(True,))) for active in (1, 3)),
    Entrant("goodput-bandit+prior", 1, _goodput, _grid(**_GOODPUT, prior_rounds=_PRIOR_ROUNDS)),
    Entrant("ucb+prior", 1, _ucb, _grid(width=_WIDTHS, prior_rounds=_PRIOR_ROUNDS)),
    Entrant("prompt-alone", 1, lambda r, _chance, _c: _by_prompt(r)),
)
LABELLED: Final = Entrant("expert-by-label", 1, lambda r, _chance, _c: LabelRouter(r))
ENTRANTS: Final = (*OURS, *RIVALS, *RIVALS_WITH_PRIOR, LABELLED, REFERENCE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Tally:
    """Rounds of one kind over many requests."""

    rounds: int
    accepted: int
    right: int

    @property
    def accepted_per_round(self) -> float:
        return self.accepted / max(1, self.rounds)

    @property
    def right_share(self) -> float:
        return self.right / max(1, self.rounds)


@dataclass(frozen=True, slots=True)
class RoutingResult:
    """One router on one list of requests: all rounds, and those after the first `LATE_TOKENS` tokens of each."""

    overall: Tally
    late: Tally
    requests: int


def measure(entrant: Entrant, requests: Iterable[Request], *, constants: Constants, seed: int) -> RoutingResult:
    """Replay requests one after the other, a new router for each."""
    chance = random.Random(seed)
    played = [(r, replay(entrant.make(r, chance, constants), r, active=entrant.active)) for r in requests]
    steps = [(request, step) for request, walked in played for step in walked]
    late = [(request, step) for request, step in steps if step.position >= LATE_TOKENS]
    return RoutingResult(_tally(steps), _tally(late), len(played))


def _tally(steps: Sequence[tuple[Request, Step]]) -> Tally:
    return Tally(
        rounds=len(steps),
        accepted=sum(step.accepted for _, step in steps),
        right=sum(step.used == request.expert_at(step.position) for request, step in steps),
    )


Traffic = Callable[..., list[Request]]
SCENARIOS: Final[Mapping[str, Traffic]] = {"mixed": mixed_traffic, "changing": changing_traffic}


def best_constants(entrant: Entrant, traffic: Sequence[Sequence[Request]]) -> Constants:
    """Of its grid, those that need the fewest rounds; the first of equals."""

    def rounds(constants: Constants) -> int:
        results = (measure(entrant, r, constants=constants, seed=seed) for seed, r in enumerate(traffic))
        return sum(result.overall.rounds for result in results)

    return entrant.grid[0] if len(entrant.grid) == 1 else min(entrant.grid, key=rounds)


def routing_table(
    traces: TraceSet,
    *,
    scenario: str,
    temperature: float,
    seeds: int = 20,
    per_domain: int = 8,
    tuning_seeds: int = 2,
    entrants: Sequence[Entrant] = ENTRANTS,
) -> list[dict[str, Any]]:
    """One row for each entrant: means over seeds, with the half width of the 95 % interval of the main figures.

    `share_of_best` compares accepted tokens per round with the best single drafter of each request in hindsight;
    `regret_rounds` counts rounds a request needed beyond it. Constants are chosen on the split "tune", for every
    entrant, scenario and temperature apart; all else is of the split "test".
    """
    build = SCENARIOS[scenario]
    tune = traces.select(split="tune", temperature=temperature)
    test = traces.select(split="test", temperature=temperature)
    tuning = [build(tune, per_domain=per_domain, seed=seed) for seed in range(tuning_seeds)]
    traffic = [build(test, per_domain=per_domain, seed=seed) for seed in range(seeds)]
    best = [measure(REFERENCE, r, constants={}, seed=seed) for seed, r in enumerate(traffic)]
    rows = []
    for entrant in entrants:
        constants = best_constants(entrant, tuning)
        results = [measure(entrant, r, constants=constants, seed=seed) for seed, r in enumerate(traffic)]
        row = {"scenario": scenario, "temperature": temperature, "router": entrant.name, "active": entrant.active}
        rows.append(row | _figures(results, best) | {"constants": dict(constants)})
    return rows


def _figures(results: Sequence[RoutingResult], best: Sequence[RoutingResult]) -> dict[str, float]:
    pairs = list(zip(results, best, strict=True))
    late = [result.late.accepted_per_round for result in results]
    overall = [result.overall.accepted_per_round for result in results]
    return {
        "accepted_per_round": fmean(overall),
        "accepted_per_round_ci95": _half_width(overall),
        "late_accepted_per_round": fmean(late),
        "late_accepted_per_round_ci95": _half_width(late),
        "share_of_best": fmean(r.overall.accepted_per_round / b.overall.accepted_per_round for r, b in pairs),
        "late_share_of_best": fmean(r.late.accepted_per_round / b.late.accepted_per_round for r, b in pairs),
        "right_expert_share": fmean(result.overall.right_share for result in results),
        "late_right_expert_share": fmean(result.late.right_share for result in results),
        "regret_rounds": fmean((r.overall.rounds - b.overall.rounds) / r.requests for r, b in pairs),
    }


def _half_width(values: Sequence[float]) -> float:
    return 1.96 * stdev(values) / math.sqrt(len(values)) if len(values) > 1 else 0.0
