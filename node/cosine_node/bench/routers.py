"""The routers compared on mixed and on changing traffic, as one experiment (`routing`)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from cosine_node.bench.cells import Say, all_processors, in_processes
from cosine_node.bench.routing import ENTRANTS, OURS, RIVALS, RIVALS_WITH_PRIOR, SCENARIOS, routing_table
from cosine_node.bench.routing_replay import DRAFT_TOKENS, LATE_TOKENS, REQUEST_TOKENS
from cosine_node.simulation.traces import TraceSet

NAME: Final = "routing"


@dataclass(frozen=True, slots=True, kw_only=True)
class RoutingOptions:
    """Which tables; `prompts` requests of each domain, repeated with `seeds` random orders.

    `constants` bounds the sets of constants tried for each router, None tries all.
    """

    processes: int = field(default_factory=all_processors)
    temperatures: tuple[float, ...] = (0.0, 0.8)
    seeds: int = 20
    prompts: int = 8
    tuning_seeds: int = 2
    constants: int | None = None

    @classmethod
    def quick(cls) -> "RoutingOptions":
        """A small form for tests."""
        return cls(processes=1, temperatures=(0.0,), seeds=1, prompts=1, tuning_seeds=1, constants=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """One table to compute."""

    scenario: str
    temperature: float
    options: RoutingOptions

    def __str__(self) -> str:
        return f"routers on {self.scenario} traffic at temperature {self.temperature:g}"


def run(options: RoutingOptions, *, say: Say) -> dict[str, object]:
    """Every router on every kind of traffic; one JSON object (docs/benchmarks.md)."""
    tables = [
        Table(scenario=scenario, temperature=temperature, options=options)
        for scenario in SCENARIOS
        for temperature in options.temperatures
    ]
    done = in_processes(_rows, tables, processes=options.processes, say=say)
    rows = [row for table in done for row in table]
    return {
        "name": NAME,
        "what": "Which drafter a router picks, replayed on recorded generations: requests of every domain in "
        "random order, and requests that change their domain on the way.",
        "command": f"cosine-node bench {NAME}",
        "setup": {
            "draft_tokens": DRAFT_TOKENS,
            "request_tokens": REQUEST_TOKENS,
            "late_rounds_begin_after_tokens": LATE_TOKENS,
            "requests_of_each_domain": options.prompts,
            "seeds": options.seeds,
            "constants": f"tuned on the split tune with {options.tuning_seeds} seeds, for every router apart",
            "drafters": "equally fast and near: what is measured is who predicts the text",
        },
        "rows": rows,
        "findings": {"against_rivals": _against(rows)},
    }


def _rows(table: Table) -> list[dict[str, Any]]:
    options = table.options
    return routing_table(
        TraceSet.load_shipped(),
        scenario=table.scenario,
        temperature=table.temperature,
        seeds=options.seeds,
        per_domain=options.prompts,
        tuning_seeds=options.tuning_seeds,
        entrants=[replace(entrant, grid=entrant.grid[: options.constants]) for entrant in ENTRANTS],
    )


def _against(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Our default router by the best rival, with and without a prior, and by the best drafter in hindsight."""
    ours, groups = OURS[0], {"rival": RIVALS, "rival_with_prior": RIVALS_WITH_PRIOR}
    found = []
    for place in dict.fromkeys((row["scenario"], row["temperature"]) for row in rows):
        here = {
            (row["router"], row["active"]): row for row in rows if (row["scenario"], row["temperature"]) == place
        }
        own = here[ours.name, ours.active]
        entry: dict[str, Any] = {"scenario": place[0], "temperature": place[1], "router": ours.name}
        entry |= {"share_of_best": own["share_of_best"], "right_expert_share": own["right_expert_share"]}
        for label, rivals in groups.items():
            best = max((here[r.name, r.active] for r in rivals), key=lambda row: float(row["accepted_per_round"]))
            entry[f"best_{label}"] = best["router"]
            entry[f"ratio_to_best_{label}"] = own["accepted_per_round"] / best["accepted_per_round"]
        found.append(entry)
    return found
