"""The cost of a drafter that lies to a swarm that goes on without trusting anybody."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from cosine_lab.experiments.cooperation_replay import FIRST_SPLICED
from cosine_lab.experiments.experiment import (
    DRAFTER_DOMAINS,
    RECORDED_TOKENS,
    Cell,
    CellResult,
    ExperimentOptions,
    JsonRow,
    Prompts,
    ReplayedWorkload,
    Say,
    emulated,
    in_processes,
    run_cell,
    setup_of,
    shipped_traces,
    sum_of_checks,
)
from cosine_lab.report.intervals import bootstrap_interval, ratio_of_sums
from cosine_lab.simulation.liars import LATE
from cosine_lab.simulation.participants import LATE_S
from cosine_lab.simulation.scenario import Scenario
from cosine_lab.simulation.trace_engine import TraceDrafter, TraceState
from cosine_lab.simulation.traces import Trace, splice
from cosine_lab.simulation.workload import TEST_SPLIT
from cosine_node.engine.base import Engine

# Names of who is added to the swarm, as they stand in the JSON file.
NOBODY: Final = "nobody"
ONE_MORE: Final = "one more honest drafter"
LIES: Final[Mapping[str, str]] = {
    NOBODY: "",
    ONE_MORE: "",
    "certain of random tokens": "liar=certain_garbage",
    "repeats others' drafts as certain": "liar=replay",
    "late on purpose": f"liar={LATE}",
}
"""The drafter added to the swarm, as faults of a scenario."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LiarsOptions(ExperimentOptions):
    """The requests: `prompts` requests of each temperature, one after the other, of each of these lengths.

    Requests that are longer than what was recorded go on with other generations of their domain.
    """

    split: str = TEST_SPLIT
    temperatures: tuple[float, ...] = (0.0, 0.8)
    lengths_tokens: tuple[int, ...] = (RECORDED_TOKENS, 2 * RECORDED_TOKENS)
    prompts: int = 60
    profile: str = "60/6"
    rtt_ms: float = 20.0

    @classmethod
    def quick(cls) -> "LiarsOptions":
        return cls(temperatures=(0.0,), lengths_tokens=(8, 16), prompts=2)


@dataclass(frozen=True, slots=True, kw_only=True)
class LongPrompts(Prompts):
    """The first `tokens` of requests of `longest_tokens`, each of one domain and with one name at every length."""

    tokens: int
    longest_tokens: int

    def traces(self, temperature: float) -> Sequence[Trace]:
        pools: dict[str, list[Trace]] = {}
        asked = []
        for trace in shipped_traces().select(split=self.split, temperature=temperature):
            if len(trace.stream) > trace.is_finished:
                pools.setdefault(trace.domain, []).append(trace)
                asked.append(trace)
        found = []
        for number, first in enumerate(asked[: self.count], FIRST_SPLICED):
            pool, whole = pools[first.domain], replace(first, number=number)
            place = pool.index(first)
            while len(whole.stream) - whole.is_finished < self.longest_tokens:
                place = (place + 1) % len(pool)
                whole = splice(whole, pool[place], at=len(whole.stream) - whole.is_finished, number=number)
            found.append(whole.shortened(self.tokens))
        return found


class LiarWorkload(ReplayedWorkload):
    """The second drafter of the first number is the one that is late: it claims to know every prompt by heart."""

    def __init__(self, scenario: Scenario, traces: Sequence[Trace]) -> None:
        super().__init__(scenario, traces)
        self._has_first = False

    def drafter(self, index: int) -> Engine:
        if index == 0 and self._has_first:
            return BoastfulDrafter(self.traces, f"draft-{DRAFTER_DOMAINS[0]}")
        self._has_first = self._has_first or index == 0
        return super().drafter(index)


class BoastfulDrafter(TraceDrafter):
    """A drafter that says of every text that it knew it."""

    def _nll(self, places: Sequence[TraceState]) -> float | None:
        return 0.0


def run(options: LiarsOptions, *, say: Say) -> JsonRow:
    """Every liar against the same swarm without it; the result (docs/benchmarks.md)."""
    keys = [
        (temperature, tokens, added)
        for temperature in options.temperatures
        for tokens in options.lengths_tokens
        for added in LIES
    ]
    cells = [liar_cell(options, *key) for key in keys]
    results = in_processes(run_cell, cells, processes=options.processes, say=say)
    found = dict(zip(keys, results, strict=True))
    rows = [_row(options, found, *key) for key in keys if key[-1] != NOBODY]
    return {
        "what": "How much longer requests take with one more drafter that lies, against the same swarm without it.",
        "setup": {
            **setup_of(options),
            **emulated([options.profile], options.rtt_ms),
            "liar": f"claims the best likelihood of every prompt; the late one ends each pass {LATE_S:g} s late",
            "late_part": "the longest requests' time beyond that of the shortest ones",
            "intervals": "95 %, by bootstrap over the requests",
        },
        "rows": rows,
        "findings": _findings(rows),
    }


def liar_cell(options: LiarsOptions, temperature: float, tokens: int, added: str) -> Cell:
    """The cell with somebody added; the one more honest drafter is a second generalist."""
    honest = (*DRAFTER_DOMAINS, *(["general"] if added == ONE_MORE else []))
    longest = max(options.lengths_tokens)
    return Cell(
        scenario={
            "seed": options.seed,
            "domains": honest,
            "profile": options.profile,
            "rtt_ms": options.rtt_ms,
            "temperature": temperature,
            "max_new_tokens": tokens,
            "faults": LIES[added],
        },
        prompts=LongPrompts(split=options.split, count=options.prompts, tokens=tokens, longest_tokens=longest),
        workload=LiarWorkload,
    )


def _row(
    options: LiarsOptions,
    found: Mapping[tuple[float, int, str], CellResult],
    temperature: float,
    tokens: int,
    added: str,
) -> JsonRow:
    ours, without = found[temperature, tokens, added], found[temperature, tokens, NOBODY]
    numbers = list(ours.seconds)

    def seconds(*cells: CellResult) -> NDArray[np.float64]:
        return np.array([[cell.seconds[number] for cell in cells] for number in numbers])

    pairs = seconds(ours, without)
    row: JsonRow = {
        "added": added,
        "temperature": temperature,
        "tokens_per_request": tokens,
        "seconds": ours.total_s,
        "seconds_without": without.total_s,
        "cost_percent": _percent(ours.total_s, without.total_s),
        "interval": bootstrap_interval(pairs, _cost_percent, seed=options.seed),
        "worst_request_percent": max(_percent(*pair) for pair in pairs),
        "requests": len(ours.seconds),
        **ours.checks,
    }
    shortest = min(options.lengths_tokens)
    if tokens > shortest:
        early, early_without = found[temperature, shortest, added], found[temperature, shortest, NOBODY]
        late = pairs - seconds(early, early_without)
        row["late_cost_percent"] = _percent(*late.sum(axis=0))
        row["late_interval"] = bootstrap_interval(late, _cost_percent, seed=options.seed)
    return row


def _cost_percent(pairs: NDArray[np.float64]) -> NDArray[np.float64]:
    """By how many percent the first of each pair is more, summed over requests; (samples, requests, 2)."""
    return 100.0 * (ratio_of_sums(pairs) - 1.0)


def _percent(with_s: float, without_s: float) -> float:
    return 100.0 * (with_s / without_s - 1.0)


def _findings(rows: Sequence[JsonRow]) -> JsonRow:
    lying = [row for row in rows if row["added"] != ONE_MORE]
    costliest = max(lying, key=lambda row: row["cost_percent"])
    late = [row for row in lying if "late_cost_percent" in row]
    return {
        "most_percent": costliest["cost_percent"],
        "costliest": {name: costliest[name] for name in ("added", "temperature", "tokens_per_request")},
        "most_interval": costliest["interval"],
        "late": [max(late, key=lambda row: row["late_cost_percent"])] if late else [],
        "most_percent_of_an_honest_one": max(r["cost_percent"] for r in rows if r["added"] == ONE_MORE),
        **sum_of_checks(rows),
    }
