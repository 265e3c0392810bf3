"""The choice of who drafts: routers compared on recorded generations, each with its best constants."""

import math
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from statistics import fmean, stdev
from typing import Any, Final

from cosine_lab.experiments.ablated import PromptlessRouter
from cosine_lab.experiments.experiment import (
    TUNE_SPLIT,
    ExperimentOptions,
    JsonRow,
    Say,
    grouped,
    in_processes,
    setup_of,
    shipped_traces,
)
from cosine_lab.experiments.reference_routers import FixedRouter, LabelRouter, UcbRouter, UniformRouter
from cosine_lab.experiments.routing_replay import (
    DRAFT_TOKENS,
    LATE_TOKENS,
    REQUEST_TOKENS,
    ReplayedRequest,
    ReplayedRound,
    changing_traffic,
    mixed_traffic,
    replay,
    rounds_alone,
)
from cosine_lab.rivals.cosine_score import CosineScoreRouter
from cosine_lab.rivals.goodput_bandit import GoodputRouter
from cosine_lab.rivals.router import Router, prompt_shares
from cosine_lab.simulation.traces import TraceSet
from cosine_lab.simulation.workload import TEST_SPLIT
from cosine_p2p.strategy.router import HedgeRouter

Constants = Mapping[str, Any]
NORMAL_95: Final = 1.96
"""Half the width of the central 95 % of a normal distribution, in standard deviations."""
TRAFFIC: Final = {"mixed": mixed_traffic, "changing": changing_traffic}
"""The kinds of traffic, as the JSON file names them: `scenario`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RoutingOptions(ExperimentOptions):
    """The tables; `prompts` requests of each domain, repeated with `seeds` random orders.

    `constants` bounds the sets of constants tried for each router, None tries all.
    """

    temperatures: tuple[float, ...] = (0.0, 0.8)
    seeds: int = 20
    prompts: int = 8
    tuning_seeds: int = 2
    constants: int | None = None

    @classmethod
    def quick(cls) -> "RoutingOptions":
        return cls(processes=1, temperatures=(0.0,), seeds=1, prompts=1, tuning_seeds=1, constants=1)


@dataclass(frozen=True, slots=True)
class ComparedRouter:
    """A router in the comparison: the number of drafters it keeps at work, and the constants to choose among."""

    name: str
    active: int
    make: Callable[..., Router]
    """Of a request, the random numbers, and constants by keyword."""
    grid: tuple[Constants, ...] = ({},)


def best_in_hindsight(request: ReplayedRequest) -> int:
    """The author that alone needs the fewest rounds."""
    return min(request.chains, key=lambda author: (rounds_alone(request, author), author))


def _grid(**options: Sequence[Any]) -> tuple[Constants, ...]:
    return tuple(dict(zip(options, values, strict=True)) for values in product(*options.values()))


def _by_prompt(request: ReplayedRequest, chance: random.Random) -> Router:
    shares = prompt_shares(request.facts)
    return FixedRouter(sorted(shares, key=lambda author: -shares[author]))


def _scored(request: ReplayedRequest, chance: random.Random, **constants: Any) -> Router:
    return CosineScoreRouter(chance, **constants)


def _goodput(request: ReplayedRequest, chance: random.Random, **constants: Any) -> Router:
    return GoodputRouter(chance, **constants)


# Choices: the published constants of each router and values on both sides of them.
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

REFERENCE: Final = ComparedRouter("best-in-hindsight", 1, lambda r, chance: FixedRouter([best_in_hindsight(r)]))
"""The best single drafter of each request."""
OURS: Final = (
    *(ComparedRouter("hedge", active, lambda r, chance: HedgeRouter()) for active in (3, 2, 1)),
    ComparedRouter("hedge-no-prior", 3, lambda r, chance: PromptlessRouter()),
)
"""The router of `cosine` as it is, then with fewer drafters and without what the prompt says."""
RIVALS: Final = (
    *(
        ComparedRouter("cosine-score", active, _scored, _grid(**_SCORE, untried_score=(0.0, 0.5, 1.0)))
        for active in (1, 3)
    ),
    ComparedRouter("goodput-bandit", 1, _goodput, _grid(**_GOODPUT)),
    ComparedRouter("ucb", 1, lambda r, chance, **constants: UcbRouter(**constants), _grid(width=_WIDTHS)),
    ComparedRouter("uniform", 1, lambda r, chance: UniformRouter(chance)),
    ComparedRouter(
        "generalist", 1, lambda r, chance: FixedRouter([a for a, m in r.models.items() if m.endswith("-general")])
    ),
)
"""As published, and the two simplest."""
RIVALS_WITH_PRIOR: Final = (
    *(
        ComparedRouter("cosine-score+prior", active, _scored, _grid(**_SCORE, has_prior=(True,)))
        for active in (1, 3)
    ),
    ComparedRouter("goodput-bandit+prior", 1, _goodput, _grid(**_GOODPUT, prior_rounds=_PRIOR_ROUNDS)),
    ComparedRouter(
        "ucb+prior",
        1,
        lambda r, chance, **constants: UcbRouter(**constants),
        _grid(width=_WIDTHS, prior_rounds=_PRIOR_ROUNDS),
    ),
    ComparedRouter("prompt-alone", 1, _by_prompt),
)
"""The same told the likelihood of the prompt, as ours is."""
LABELLED: Final = ComparedRouter("expert-by-label", 1, lambda r, chance: LabelRouter(r))
"""Told the domain of every position, which nobody is."""
ROUTERS: Final = (*OURS, *RIVALS, *RIVALS_WITH_PRIOR, LABELLED, REFERENCE)
"""In the order of the rows."""


@dataclass(frozen=True, slots=True)
class RoutingCounts:
    """Totals over many requests; the late rounds are those after the first `LATE_TOKENS` tokens of each."""

    requests: int
    rounds: int
    accepted_per_round: float
    expert_share: float
    late_accepted_per_round: float
    late_expert_share: float


def measure(
    router: ComparedRouter, requests: Sequence[ReplayedRequest], *, constants: Constants, seed: int
) -> RoutingCounts:
    """Replay requests one after the other, a new router for each."""
    chance = random.Random(seed)
    rounds: list[tuple[ReplayedRequest, ReplayedRound]] = []
    for request in requests:
        played = replay(router.make(request, chance, **constants), request, active=router.active)
        rounds += [(request, one) for one in played]
    late = [(request, one) for request, one in rounds if one.position >= LATE_TOKENS]

    def accepted(of: Sequence[tuple[ReplayedRequest, ReplayedRound]]) -> float:
        return sum(one.accepted for _, one in of) / max(1, len(of))

    def by_expert(of: Sequence[tuple[ReplayedRequest, ReplayedRound]]) -> float:
        return sum(one.used == request.expert_at(one.position) for request, one in of) / max(1, len(of))

    return RoutingCounts(
        len(requests), len(rounds), accepted(rounds), by_expert(rounds), accepted(late), by_expert(late)
    )


def best_constants(router: ComparedRouter, traffic: Sequence[Sequence[ReplayedRequest]]) -> Constants:
    """Of its grid, those that need the fewest rounds; the first of equals."""
    if len(router.grid) == 1:
        return router.grid[0]
    return min(
        router.grid,
        key=lambda constants: sum(
            measure(router, requests, constants=constants, seed=seed).rounds
            for seed, requests in enumerate(traffic)
        ),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class RoutingTable:
    """One table to compute: a kind of traffic at a temperature."""

    scenario: str
    temperature: float
    options: RoutingOptions

    def __str__(self) -> str:
        return f"routers on {self.scenario} traffic at temperature {self.temperature:g}"

    def rows(self, traces: TraceSet, routers: Sequence[ComparedRouter] = ROUTERS) -> list[JsonRow]:
        """One row for each router: means over seeds, with the half width of the 95 % interval of the main figures.

        `share_of_best` compares accepted tokens per round with the best single drafter of each request in
        hindsight; `regret_rounds` counts rounds a request needed beyond it. Constants are chosen on the split
        "tune", for every router, kind of traffic and temperature apart; all else is of the split "test".
        """
        options = self.options

        def traffic(split: str, seeds: int) -> list[list[ReplayedRequest]]:
            known = traces.select(split=split, temperature=self.temperature)
            return [TRAFFIC[self.scenario](known, per_domain=options.prompts, seed=seed) for seed in range(seeds)]

        # None of ours has constants to choose among.
        is_tuned = any(len(router.grid) > 1 for router in routers)
        tuning = traffic(TUNE_SPLIT, options.tuning_seeds) if is_tuned else []
        tests = traffic(TEST_SPLIT, options.seeds)
        best = [measure(REFERENCE, requests, constants={}, seed=seed) for seed, requests in enumerate(tests)]
        rows = []
        for router in routers:
            constants = best_constants(router, tuning)
            found = [
                measure(router, requests, constants=constants, seed=seed) for seed, requests in enumerate(tests)
            ]
            rows.append(
                {
                    "scenario": self.scenario,
                    "temperature": self.temperature,
                    "router": router.name,
                    "active": router.active,
                    **figures_of(found, best),
                    "constants": dict(constants),
                }
            )
        return rows


def figures_of(found: Sequence[RoutingCounts], best: Sequence[RoutingCounts]) -> dict[str, float]:
    """Means over seeds; `best` are those of the best single drafter in hindsight."""
    pairs = list(zip(found, best, strict=True))
    accepted = [counts.accepted_per_round for counts in found]
    late = [counts.late_accepted_per_round for counts in found]

    def half_width(values: Sequence[float]) -> float:
        return NORMAL_95 * stdev(values) / math.sqrt(len(values)) if len(values) > 1 else 0.0

    return {
        "accepted_per_round": fmean(accepted),
        "accepted_per_round_ci95": half_width(accepted),
        "late_accepted_per_round": fmean(late),
        "late_accepted_per_round_ci95": half_width(late),
        "share_of_best": fmean(own.accepted_per_round / b.accepted_per_round for own, b in pairs),
        "late_share_of_best": fmean(own.late_accepted_per_round / b.late_accepted_per_round for own, b in pairs),
        "right_expert_share": fmean(counts.expert_share for counts in found),
        "late_right_expert_share": fmean(counts.late_expert_share for counts in found),
        "regret_rounds": fmean((own.rounds - b.rounds) / own.requests for own, b in pairs),
    }


def rows_of(table: RoutingTable) -> list[JsonRow]:
    """The rows of a table, on the shipped traces and with as many constants as its options allow."""
    routers = [replace(router, grid=router.grid[: table.options.constants]) for router in ROUTERS]
    return table.rows(shipped_traces(), routers)


def run(options: RoutingOptions, *, say: Say) -> JsonRow:
    """Every router on every kind of traffic; the result (docs/benchmarks.md)."""
    tables = [
        RoutingTable(scenario=scenario, temperature=temperature, options=options)
        for scenario in TRAFFIC
        for temperature in options.temperatures
    ]
    rows = [row for own in in_processes(rows_of, tables, processes=options.processes, say=say) for row in own]
    return {
        "what": "Which drafter a router picks, replayed on recorded generations: requests of every domain in "
        "random order, and requests that change their domain on the way.",
        "setup": setup_of(
            options,
            draft_tokens=DRAFT_TOKENS,
            request_tokens=REQUEST_TOKENS,
            late_rounds_begin_after_tokens=LATE_TOKENS,
            constants_of="every router are tuned apart, on the split tune",
            drafters="equally fast and near: what is measured is who predicts the text",
        ),
        "rows": rows,
        "findings": {"against_rivals": list(_against_rivals(rows))},
    }


def _against_rivals(rows: Sequence[JsonRow]) -> Iterator[JsonRow]:
    """Our default router by the best rival, with and without a prior, and by the best drafter in hindsight."""
    ours = OURS[0]
    for (scenario, temperature), together in grouped(rows, "scenario", "temperature").items():
        here = {(row["router"], row["active"]): row for row in together}
        own = here[ours.name, ours.active]
        entry = {"scenario": scenario, "temperature": temperature, "router": ours.name}
        entry |= {name: own[name] for name in ("share_of_best", "right_expert_share")}
        for label, rivals in (("rival", RIVALS), ("rival_with_prior", RIVALS_WITH_PRIOR)):
            best = max((here[r.name, r.active] for r in rivals), key=lambda row: float(row["accepted_per_round"]))
            entry[f"best_{label}"] = best["router"]
            entry[f"ratio_to_best_{label}"] = own["accepted_per_round"] / best["accepted_per_round"]
        yield entry
