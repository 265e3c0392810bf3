"""Clients that one verifier serves while it keeps a promise of speed: the figure that an operator buys.

Clients ask again and again. The promise is a mean time per token after the first that 95 % of requests keep. A
verifier that also drafts spends gamma * t_draft more on every pass of t_verify; one that others draft for does
1 + gamma * t_draft / t_verify times as many passes (arXiv 2606.25091). That stands beside what was found.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from cosine_lab.experiments.crowd import DEVICES
from cosine_lab.experiments.entrants import BY_LABEL, GENERALIST, OURS, PLAIN, SHIPPED, SHIPS, OptionValues
from cosine_lab.experiments.experiment import (
    EXPERTS_OF,
    TUNE_SPLIT,
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
)
from cosine_lab.report.capacity_findings import (
    BESIDE_ROUNDS,
    NOBODY_ELSE,
    WAYS,
    capacity_of,
    findings_of,
    sentences_of,
)
from cosine_lab.report.intervals import bootstrap_interval
from cosine_lab.report.rtt_findings import ALONE, BASELINE, REMOTE
from cosine_lab.simulation.workload import TEST_SPLIT, Task
from cosine_node.zoo.family import Family
from cosine_protocol.records import Role

KEPT_PERCENT: Final = 95.0
"""The share of requests that the promise is about. A choice, as usual for services."""
FREE: Final[Mapping[str, Mapping[str, Any]]] = {
    OURS.name: SHIPPED,
    REMOTE: {**SHIPPED, "home": ""},
    ALONE: {**SHIPPED, "max_drafters": 0},
}
"""Ways of `cosine` with the verifier as it ships, by label, with their fields of `Scenario`."""
_CHAINS: Final = tuple((BASELINE, {"draft_tokens": tokens, "drafter": BY_LABEL}) for tokens in (2, 4))
_TREE: Final = ("specinfer", {"depth_tokens": 4, "max_nodes": 8, "drafters": 1, "drafter": BY_LABEL})
ROUNDS: Final[Mapping[str, tuple[tuple[str, OptionValues], ...]]] = {
    BESIDE_ROUNDS: (*_CHAINS, _TREE),
    BASELINE: _CHAINS,
}
"""Ways of rounds, by label, with the strategies and option values that the best is chosen from."""
SLOW: Final = (OURS.name, REMOTE)
"""Ways that take long to simulate: their search begins next to where that of `ALONE` ended."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CapacityOptions(ExperimentOptions):
    """The search, among `counts` of clients. So many `measured` requests count, of the same prompts at every count.

    There is a drafter of each domain and a general one, or one for every `clients_per_drafter` clients where those
    are more. Rounds are tuned with `tuning_clients` on the split "tune".
    """

    family: str = Family.SMOL
    profile: str = DEVICES
    temperatures: tuple[float, ...] = (0.0, 0.8)
    rtt_ms: float = 20.0
    promise_ms: float = 50.0
    lax_promise_ms: float = 75.0
    counts: tuple[int, ...] = (
        1,
        2,
        3,
        4,
        6,
        8,
        10,
        12,
        14,
        16,
        18,
        20,
        24,
        28,
        32,
        40,
        48,
        56,
        64,
        80,
        96,
        112,
        128,
    )
    first_count: int = 8
    measured: int = 48
    tokens: int = 64
    clients_per_drafter: int = 4
    tuning_clients: int = 2
    tuning_choices: int = 3

    @classmethod
    def quick(cls) -> "CapacityOptions":
        return cls(
            family=Family.TOY,
            profile="60/6",
            temperatures=(0.0,),
            counts=(1, 2),
            first_count=1,
            measured=2,
            tokens=12,
            tuning_clients=1,
            tuning_choices=1,
        )

    @property
    def domains(self) -> tuple[str, ...]:
        """The kinds of drafters. None copies from the text: verifiers do."""
        return (*EXPERTS_OF[Family(self.family)], GENERALIST)

    def drafters(self, clients: int) -> int:
        """The drafters elsewhere, of every way that uses any."""
        return max(len(self.domains), math.ceil(clients / self.clients_per_drafter))

    def counted(self, clients: int) -> range:
        """The numbers of the requests that count: neither the first nor the last of any client."""
        return range(clients, clients + self.measured)


class StaggeredWorkload(ReplayedWorkload):
    """The same, with every client's first text cut short by another share, so that clients are out of step.

    The first request that counts has the first prompt, whatever the number of clients.
    """

    def task(self, number: int) -> Task:
        clients = self._scenario.clients
        task = super().task(number - clients)
        if number >= clients:
            return task
        tokens = math.ceil(task.max_new_tokens * (number + 1) / clients)
        return replace(task, max_new_tokens=tokens, stream=task.stream[:tokens])


@dataclass(frozen=True, slots=True, kw_only=True)
class CapacitySearch:
    """The search for the most clients of a way: a strategy with its option values and fields of `Scenario`."""

    options: CapacityOptions
    way: str
    temperature: float
    strategy: str
    choice: OptionValues
    scenario: Mapping[str, Any]
    first_count: int

    def __str__(self) -> str:
        return f"{self.way}, T {self.temperature:g}"

    def cell(self, clients: int, *, split: str = TEST_SPLIT) -> Cell:
        """The run with so many clients."""
        options = self.options
        scenario = {
            "seed": options.seed,
            "profile": options.profile,
            "temperature": self.temperature,
            "rtt_ms": options.rtt_ms,
            "clients": clients,
            "max_requests": clients,
            "requests": 2 + math.ceil(options.measured / clients),
            "max_new_tokens": options.tokens,
            "domains": options.domains,
            "drafters": 0 if self.way in NOBODY_ELSE else options.drafters(clients),
            **self.scenario,
        }
        prompts = Prompts(split=split, family=Family(options.family))
        workload = StaggeredWorkload
        return Cell(
            strategy=self.strategy, choice=self.choice, scenario=scenario, prompts=prompts, workload=workload
        )


Tuned = Mapping[tuple[str, float], tuple[str, OptionValues]]
"""The strategy and option values of ways of rounds, by label and temperature."""


def run(options: CapacityOptions, *, say: Say) -> JsonRow:
    """Search for the most clients of every way; the result (docs/benchmarks.md)."""
    tuned = _tuned(options, say)
    # Rounds end where they were tuned, or near.
    first_counts = {
        (way, t): options.tuning_clients if way in ROUNDS else options.first_count
        for way, t in product(WAYS, options.temperatures)
        if way not in SLOW
    }
    rows = _found(options, first_counts, tuned, say)
    beside = {t: capacity_of(rows, ALONE, t, promise_ms=options.promise_ms) for t in options.temperatures}
    first_counts = {
        (way, t): beside[t]["next_clients"] or options.counts[-1] for way, t in product(SLOW, options.temperatures)
    }
    rows += _found(options, first_counts, tuned, say)
    rows.sort(key=lambda row: (row["temperature"], WAYS.index(row["way"]), row["clients"]))
    findings = findings_of(rows)
    return {
        "what": f"How many clients one verifier serves while {KEPT_PERCENT:g} % of their requests take at most "
        f"{options.promise_ms:g} ms a token after the first, by who drafts. {sentences_of(findings)}",
        "setup": {
            **setup_of(options),
            **emulated([options.profile], options.rtt_ms),
            "clients": "each asks again once answered; its first text, cut short to bring clients out of step, and "
            "its last do not count",
            "drafters": f"{', '.join(options.domains)}, then the same again; each on a device of its own, also "
            "those of rounds beside the verifier, which have no distance and no client's time to decide",
            "drafter_at_the_verifier": f"the {GENERALIST} one, whose passes the target waits for",
            "intervals": "95 %, by bootstrap over the requests that count",
            "tuned_over": ROUNDS,
        },
        "rows": rows,
        "findings": findings,
    }


def search_of(
    options: CapacityOptions, way: str, temperature: float, tuned: Tuned, *, first_count: int = 1
) -> CapacitySearch:
    """The search of a way at a temperature."""
    strategy, choice = tuned.get((way, temperature), (PLAIN.name, {}))
    if way in FREE:
        strategy, choice = OURS.name, {"policy": SHIPS}
    # A program beside the verifier writes to nobody.
    no_distance = {"rtt_ms": 0.0, "decision_s": 0.0}
    return CapacitySearch(
        options=options,
        way=way,
        temperature=temperature,
        strategy=strategy,
        choice=choice,
        scenario=no_distance if way == BESIDE_ROUNDS else dict(FREE.get(way, {})),
        first_count=first_count,
    )


def most_kept(counts: Sequence[int], keeps: Callable[[int], bool], *, first: int) -> int:
    """The index of the largest count that keeps the promise, -1 if none does, as if all smaller ones did too.

    From the index `first` the steps double until one count keeps it and one does not, then they halve.
    """
    kept, broken, index, step = -1, len(counts), first, 1
    while broken - kept > 1:
        if keeps(counts[index]):
            kept = index
        else:
            broken = index
        if kept < 0:
            index = max(broken - step, 0)
        elif broken == len(counts):
            index = min(kept + step, broken - 1)
        else:
            index = (kept + broken) // 2
        step *= 2
    return kept


def searched(search: CapacitySearch) -> list[JsonRow]:
    """A row for every number of clients that a search tries."""
    options, rows = search.options, dict[int, JsonRow]()

    def token_ms(clients: int) -> float:
        if clients not in rows:
            rows[clients] = row_of(search, clients, run_cell(search.cell(clients)))
        return float(rows[clients]["token_p95_ms"])

    def most(promise_ms: float, first: int) -> int:
        return max(0, most_kept(options.counts, lambda clients: token_ms(clients) <= promise_ms, first=first))

    first = most(options.promise_ms, options.counts.index(search.first_count))
    if search.way in NOBODY_ELSE:
        most(options.lax_promise_ms, first)
    return list(rows.values())


def row_of(search: CapacitySearch, clients: int, result: CellResult) -> JsonRow:
    """A row: a request's time per token, and where the time of the verifier went, over the whole run."""
    report, options = result.report, search.options
    numbers = options.counted(clients)
    token_ms = [
        1e3 * (one.seconds - one.first_s) / (one.tokens - 1)
        for one in report.results
        if one.number in numbers and one.tokens > 1
    ]
    [verifier] = [node for node in report.nodes if node.role is Role.VERIFIER]
    drafters = [node for node in report.nodes if node.role is Role.DRAFTER]
    asked_s = report.virtual_seconds - min(one.began_s for one in report.results)
    return {
        "profile": options.profile,
        "temperature": search.temperature,
        "way": search.way,
        "clients": clients,
        "drafters": len(drafters),
        "token_p50_ms": float(np.percentile(token_ms, 50)),
        "token_p90_ms": float(np.percentile(token_ms, 90)),
        "token_p95_ms": float(np.percentile(token_ms, KEPT_PERCENT)),
        "interval": bootstrap_interval(token_ms, _slow_ones, seed=options.seed),
        "promise_ms": options.promise_ms,
        "lax_promise_ms": options.lax_promise_ms,
        "tokens_per_s": report.tokens_per_s,
        "pass_ms": 1e3 * verifier.busy_s / verifier.passes,
        "fed_per_pass": verifier.tokens_fed / verifier.passes,
        "tokens_per_row": report.tokens / verifier.rows,
        "target_share": verifier.busy_s / asked_s,
        "own_drafts_share": verifier.home_busy_s / asked_s,
        "idle_share": 1.0 - (verifier.busy_s + verifier.home_busy_s) / asked_s,
        "drafters_busy_share": sum(node.busy_s for node in drafters) / (asked_s * max(1, len(drafters))),
        "gamma": verifier.home_passes / verifier.passes,
        "draft_ms": 1e3 * verifier.home_busy_s / max(1, verifier.home_passes),
        "options": {name: value for name, value in search.choice.items() if name != "policy"},
        "strategy": search.strategy,
        "requests": len(token_ms),
        **result.checks,
    }


def _slow_ones(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """What the promise is about; the shape is (samples, requests)."""
    found: NDArray[np.float64] = np.percentile(values, KEPT_PERCENT, axis=1)
    return found


def _found(
    options: CapacityOptions, first_counts: Mapping[tuple[str, float], int], tuned: Tuned, say: Say
) -> list[JsonRow]:
    """The rows of searches for some ways and temperatures, each from its first count on."""
    searches = [
        search_of(options, way, temperature, tuned, first_count=first_count)
        for (way, temperature), first_count in first_counts.items()
    ]
    found = in_processes(searched, searches, processes=options.processes, say=say)
    return [row for rows in found for row in rows]


def _tuned(options: CapacityOptions, say: Say) -> Tuned:
    """The choice with the least time per token that the promise is about, for every way of rounds."""
    tried = [
        search_of(options, way, temperature, {(way, temperature): choice})
        for way, temperature in product(ROUNDS, options.temperatures)
        for choice in ROUNDS[way][: options.tuning_choices]
    ]
    cells = [search.cell(options.tuning_clients, split=TUNE_SPLIT) for search in tried]
    results = in_processes(run_cell, cells, processes=options.processes, say=say)
    best: dict[tuple[str, float], tuple[float, CapacitySearch]] = {}
    for search, result in zip(tried, results, strict=True):
        took_ms, key = (
            row_of(search, options.tuning_clients, result)["token_p95_ms"],
            (search.way, search.temperature),
        )
        if key not in best or took_ms < best[key][0]:
            best[key] = took_ms, search
    return {key: (search.strategy, search.choice) for key, (_, search) in best.items()}
