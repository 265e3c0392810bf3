"""What a drafter that lies costs a swarm that goes on without trusting anybody."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from cosine_node.bench.cells import DOMAINS, TEST, Say, all_processors, in_processes
from cosine_node.bench.cooperation_cells import GivenWorkload
from cosine_node.bench.cooperation_replay import FIRST_SPLICED
from cosine_node.bench.entrants import POLICIES
from cosine_node.engine.base import Engine
from cosine_node.simulation.liars import LATE
from cosine_node.simulation.participants import LATE_S
from cosine_node.simulation.running import run_scenario
from cosine_node.simulation.scenario import DECISION_S, EngineSource, Scenario
from cosine_node.simulation.trace_engine import TraceDrafter, TraceState
from cosine_node.simulation.traces import Trace, TraceSet, splice
from cosine_p2p.strategies import STRATEGIES
from cosine_protocol.errors import UsageError

NAME: Final = "liars"
COMMAND: Final = f"cosine-node bench {NAME}"
NOBODY: Final = "nobody"
ONE_MORE: Final = "one more honest drafter"
LIES: Final[Mapping[str, str]] = {
    NOBODY: "",
    ONE_MORE: "",
    "certain of random tokens": "liar=certain_garbage",
    "repeats others' drafts as certain": "liar=replay",
    "late on purpose": f"liar={LATE}",
}
"""Who is added to the swarm, as faults of a scenario."""
EARLY_TOKENS: Final = 128


@dataclass(frozen=True, slots=True, kw_only=True)
class LiarsOptions:
    """What to measure: `prompts` requests of each temperature, one after the other, of each of these lengths.

    Requests that are longer than what was recorded go on with other generations of their domain.
    """

    seed: int = 0
    processes: int = field(default_factory=all_processors)
    split: str = TEST
    temperatures: tuple[float, ...] = (0.0, 0.8)
    lengths_tokens: tuple[int, ...] = (EARLY_TOKENS, 2 * EARLY_TOKENS)
    prompts: int = 60
    profile: str = "60/6"
    rtt_ms: float = 20.0

    @classmethod
    def quick(cls) -> "LiarsOptions":
        """The smallest form, for tests and a look."""
        return cls(temperatures=(0.0,), lengths_tokens=(8, 16), prompts=2)


@dataclass(frozen=True, slots=True, kw_only=True)
class LiarCell:
    """One run: who is added, how long the requests are, and the rest as in `LiarsOptions`."""

    added: str
    tokens: int
    longest_tokens: int
    temperature: float
    split: str
    prompts: int
    profile: str
    rtt_ms: float
    seed: int

    def __str__(self) -> str:
        return f"{self.added}, {self.tokens} tokens, temperature {self.temperature:g}"


@dataclass(frozen=True, slots=True, kw_only=True)
class LiarResult:
    """Seconds of every request."""

    seconds: tuple[float, ...]
    tokens: int
    mismatches: int
    violations: tuple[str, ...]
    digest: str


def run(options: LiarsOptions, *, say: Say) -> dict[str, object]:
    """Every liar against the same swarm without it; one JSON object (docs/benchmarks.md)."""
    cells = list(_cells(options))
    results = in_processes(run_liar_cell, cells, processes=options.processes, say=say)
    found = dict(zip(cells, results, strict=True))
    rows = [_row(cell, found) for cell in cells if cell.added != NOBODY]
    return {
        "name": NAME,
        "what": "How much longer requests take with one more drafter that lies, against the same swarm without it.",
        "command": COMMAND,
        "setup": {
            "strategy": "cosine",
            "verifiers": 1,
            "honest_drafters": list(DOMAINS),
            "liar": f"claims the best likelihood of every prompt; the late one ends each pass {LATE_S:g} s late",
            "emulated_profile_ms": options.profile,
            "emulated_rtt_ms": options.rtt_ms,
            "emulated_client_decision_ms": 1e3 * DECISION_S,
            "traces": f"the split {options.split}; longer requests go on with others of their domain",
            "prompts": options.prompts,
            "lengths_tokens": list(options.lengths_tokens),
            "late_part": "the longest requests' time beyond that of the shortest ones",
        },
        "rows": rows,
        "findings": _findings(rows),
    }


def _cells(options: LiarsOptions) -> Iterator[LiarCell]:
    for temperature in options.temperatures:
        for tokens in options.lengths_tokens:
            for added in LIES:
                yield LiarCell(
                    added=added,
                    tokens=tokens,
                    longest_tokens=max(options.lengths_tokens),
                    temperature=temperature,
                    split=options.split,
                    prompts=options.prompts,
                    profile=options.profile,
                    rtt_ms=options.rtt_ms,
                    seed=options.seed,
                )


def run_liar_cell(cell: LiarCell) -> LiarResult:
    """Run a cell. Raises `UsageError` for a request that did not finish."""
    traces = [trace.shortened(cell.tokens) for trace in long_requests(cell)]
    honest = (*DOMAINS, *(["general"] if cell.added == ONE_MORE else []))
    scenario = Scenario(
        name="liars",
        seed=cell.seed,
        source=EngineSource.TRACES,
        drafters=len(honest),
        domains=honest,
        profile=cell.profile,
        rtt_ms=cell.rtt_ms,
        requests=len(traces),
        temperature=cell.temperature,
        faults=LIES[cell.added],
    )
    workload = LiarWorkload(scenario, traces)
    options = {"policy": POLICIES["ours"]}
    report = run_scenario(scenario, strategies=STRATEGIES, workload=workload, verifier_options=options)
    if len(report.finished) < len(traces):
        raise UsageError(f"{cell}: {len(traces) - len(report.finished)} requests did not finish.")
    return LiarResult(
        seconds=tuple(result.seconds for result in report.results),
        tokens=report.tokens,
        mismatches=report.mismatches,
        violations=tuple(report.violations()),
        digest=report.digest,
    )


def long_requests(cell: LiarCell) -> list[Trace]:
    """Requests as long as the longest of the experiment, each of one domain and with one name at every length."""
    traces = TraceSet.load_shipped().select(split=cell.split, temperature=cell.temperature)
    pools: dict[str, list[Trace]] = {}
    for trace in traces:
        if len(trace.stream) > trace.is_finished:
            pools.setdefault(trace.domain, []).append(trace)
    asked = [trace for trace in traces if trace in pools.get(trace.domain, ())][: cell.prompts]
    return [
        _prolonged(pools[first.domain], first, tokens=cell.longest_tokens, number=FIRST_SPLICED + index)
        for index, first in enumerate(asked)
    ]


def _prolonged(pool: Sequence[Trace], first: Trace, *, tokens: int, number: int) -> Trace:
    """The first one, and after it those that follow it in the pool, as often round as is needed."""
    whole, place = replace(first, number=number), pool.index(first)
    while len(whole.stream) - whole.is_finished < tokens:
        place = (place + 1) % len(pool)
        whole = splice(whole, pool[place], at=len(whole.stream) - whole.is_finished, number=number)
    return whole.shortened(tokens)


class LiarWorkload(GivenWorkload):
    """The second drafter of the first number is the one that is late: it claims to know every prompt by heart."""

    def __init__(self, scenario: Scenario, traces: Sequence[Trace]) -> None:
        super().__init__(scenario, traces)
        self._has_first = False

    def drafter(self, index: int) -> Engine:
        if index == 0 and self._has_first:
            return BoastfulDrafter(self._traces, f"draft-{self._scenario.domain(0)}")
        self._has_first = self._has_first or index == 0
        return super().drafter(index)


class BoastfulDrafter(TraceDrafter):
    """A drafter that says of every text that it knew it."""

    def _nll(self, places: Sequence[TraceState]) -> float | None:
        return 0.0


def _row(cell: LiarCell, found: Mapping[LiarCell, LiarResult]) -> dict[str, Any]:
    ours, without = found[cell], found[_without(cell, cell.tokens)]
    row = {
        "added": cell.added,
        "temperature": cell.temperature,
        "tokens_per_request": cell.tokens,
        "seconds": sum(ours.seconds),
        "seconds_without": sum(without.seconds),
        "cost_percent": _percent(sum(ours.seconds), sum(without.seconds)),
        "worst_request_percent": max(map(_percent, ours.seconds, without.seconds)),
        "requests": len(ours.seconds),
        "tokens": ours.tokens,
        "mismatches": ours.mismatches,
        "violations": len(ours.violations),
    }
    shorter = [other for other in found if _is_shorter(other, cell)]
    if shorter:
        early = min(shorter, key=lambda other: other.tokens)
        late_s = sum(ours.seconds) - sum(found[early].seconds)
        late_without_s = sum(without.seconds) - sum(found[_without(cell, early.tokens)].seconds)
        row["late_cost_percent"] = _percent(late_s, late_without_s)
    return row


def _is_shorter(other: LiarCell, cell: LiarCell) -> bool:
    return other.added == cell.added and other.temperature == cell.temperature and other.tokens < cell.tokens


def _without(cell: LiarCell, tokens: int) -> LiarCell:
    return replace(cell, added=NOBODY, tokens=tokens)


def _percent(with_s: float, without_s: float) -> float:
    return 100.0 * (with_s / without_s - 1.0)


def _findings(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    lying = [row for row in rows if row["added"] != ONE_MORE]
    costliest = max(lying, key=lambda row: row["cost_percent"])
    late = [row["late_cost_percent"] for row in lying if "late_cost_percent" in row]
    return {
        "most_percent": costliest["cost_percent"],
        "costliest": {name: costliest[name] for name in ("added", "temperature", "tokens_per_request")},
        "most_late_percent": max(late, default=None),
        "most_percent_of_an_honest_one": max(r["cost_percent"] for r in rows if r["added"] == ONE_MORE),
        "mismatches": sum(row["mismatches"] for row in rows),
        "violations": sum(row["violations"] for row in rows),
    }
