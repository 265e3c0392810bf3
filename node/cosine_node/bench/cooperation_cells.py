"""The simulated part of the cooperation experiment: cosine with a swarm against cosine with each drafter alone."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from cosine_node.bench.cells import Say, in_processes
from cosine_node.bench.cooperation_replay import changing
from cosine_node.bench.entrants import POLICIES, Choice
from cosine_node.engine.base import Engine
from cosine_node.simulation.running import run_scenario
from cosine_node.simulation.scenario import EngineSource, Scenario
from cosine_node.simulation.trace_engine import TraceDrafter, TraceTarget
from cosine_node.simulation.traces import VOCAB_TOKENS, Trace, TraceSet
from cosine_node.simulation.workload import LOOKUP, Task, lookup_engine
from cosine_p2p.strategies.base import StrategyKind
from cosine_p2p.strategies.cosine import Cosine, CosineOptions
from cosine_protocol.errors import UsageError
from cosine_protocol.request import Sampling

OURS: Final = "cosine"


class GivenWorkload:
    """These traces in this order, for drafters named in `domains`; `lookup` is the one without a model."""

    vocab_tokens = VOCAB_TOKENS

    def __init__(self, scenario: Scenario, traces: Sequence[Trace]) -> None:
        self._scenario = scenario
        self._given = tuple(traces)
        self._traces = TraceSet(traces)
        self.eos = self._traces.eos

    def target(self, index: int) -> Engine:
        return TraceTarget(self._traces)

    def drafter(self, index: int) -> Engine:
        domain = self._scenario.domain(index)
        if domain == LOOKUP:
            return lookup_engine(VOCAB_TOKENS)
        return TraceDrafter(self._traces, f"draft-{domain}")

    def task(self, number: int) -> Task:
        trace = self._given[number % len(self._given)]
        return Task(
            domain=trace.domain,
            prompt=trace.prompt(),
            sampling=Sampling(temperature=trace.temperature, seed=trace.seed),
            max_new_tokens=len(trace.stream),
            stream=trace.stream,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class SwarmCell:
    """Cosine with these drafters on the prompts of a case, of one domain unless that is empty.

    `change_at` above 0 makes requests that change domain there; `tokens` bounds them all. `nodes` is how many
    draft nodes a pass takes at most, all that come; None leaves it to the verifier's selection.
    """

    drafters: tuple[str, ...]
    choice: Choice = field(default_factory=dict)
    domain: str = ""
    change_at: int = 0
    tokens: int = 128
    nodes: int | None = None
    temperature: float = 0.0
    split: str = "test"
    prompts: int = 20
    profile: str = "60/6"
    rtt_ms: float = 20.0
    seed: int = 0

    def __str__(self) -> str:
        kind = f"changing at {self.change_at}" if self.change_at else self.domain or "all"
        return f"{'+'.join(self.drafters)} on {kind}, {self.nodes or 'chosen'} nodes, T {self.temperature:g}"


@dataclass(frozen=True, slots=True)
class Served:
    """One request of a simulation."""

    accepted: int
    rounds: int
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SwarmResult:
    """The requests of a cell by the number of their trace."""

    served: Mapping[int, Served]
    mismatches: int
    violations: tuple[str, ...]
    digest: str


def run_swarm_cell(cell: SwarmCell) -> SwarmResult:
    """Run a cell. Raises `UsageError` for what cannot be run, and for a request that did not finish."""
    traces = traces_of(cell)
    scenario = Scenario(
        name="cooperation",
        seed=cell.seed,
        source=EngineSource.TRACES,
        strategy=OURS,
        drafters=len(cell.drafters),
        domains=cell.drafters,
        profile=cell.profile,
        rtt_ms=cell.rtt_ms,
        requests=len(traces),
        temperature=cell.temperature,
    )
    own = {name: value for name, value in cell.choice.items() if name != "policy"}
    kind = StrategyKind(name=OURS, make=lambda root: Cosine(root, options=CosineOptions(**own)))
    options: dict[str, Any] = {"policy": POLICIES["ours"]}
    if cell.nodes is not None:
        options = {"policy": POLICIES["no-dropping"], "budget_tokens": 1 + cell.nodes}
    workload = GivenWorkload(scenario, traces)
    report = run_scenario(scenario, strategies={OURS: kind}, workload=workload, verifier_options=options)
    if len(report.finished) < len(traces):
        raise UsageError(f"{cell}: {len(traces) - len(report.finished)} requests did not finish.")
    return SwarmResult(
        served={
            trace.number: Served(result.accepted, result.rounds, result.seconds)
            for trace, result in zip(traces, report.results, strict=True)
        },
        mismatches=report.mismatches,
        violations=tuple(report.violations()),
        digest=report.digest,
    )


def traces_of(cell: SwarmCell) -> tuple[Trace, ...]:
    """The prompts of a cell. Raises `UsageError` if there are none."""
    traces = TraceSet.load_shipped().select(split=cell.split, temperature=cell.temperature)
    if cell.change_at:
        traces = changing(traces, at=cell.change_at, rest_tokens=cell.change_at, seed=cell.seed)
    own = (trace for trace in traces[: cell.prompts] if cell.domain in ("", trace.domain))
    chosen = tuple(trace.shortened(cell.tokens) for trace in own)
    if not chosen:
        raise UsageError(f"There is no prompt for {cell}.")
    return chosen


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """One comparison of a swarm with each of its drafters alone: one cell each for every domain."""

    case: str
    without_expert: bool
    domains: tuple[str, ...]
    swarm: tuple[str, ...]
    count: int
    base: SwarmCell

    def cells(self) -> Iterator[tuple[str, SwarmCell]]:
        """Cells with the name of who drafts alone, empty for all together."""
        for domain in self.domains:
            cast = tuple(name for name in self.swarm if not (self.without_expert and name == domain))
            together = {"drafters": min(self.count, len(cast))}
            yield "", _varied(self.base, domain, cast, together)
            for name in cast:
                yield name, _varied(self.base, domain, (name,), {"drafters": 1})


def _varied(base: SwarmCell, domain: str, drafters: tuple[str, ...], choice: Choice) -> SwarmCell:
    return SwarmCell(
        drafters=drafters,
        choice={**base.choice, **choice},
        domain=domain,
        change_at=base.change_at,
        tokens=base.tokens,
        nodes=base.nodes,
        temperature=base.temperature,
        split=base.split,
        prompts=base.prompts,
        profile=base.profile,
        rtt_ms=base.rtt_ms,
        seed=base.seed,
    )


def compare_swarms(plans: Sequence[Plan], *, processes: int, say: Say) -> list[dict[str, Any]]:
    """One row for each plan. A cell that several plans share is run once."""
    wanted = [(plan, name, cell) for plan in plans for name, cell in plan.cells()]
    cells = list({str(cell) + repr(cell): cell for _, _, cell in wanted}.values())
    say(f"{len(cells)} cells to simulate")
    found = in_processes(run_swarm_cell, cells, processes=processes, say=say)
    results = {repr(cell): result for cell, result in zip(cells, found, strict=True)}
    return [_row(plan, results) for plan in plans]


def _row(plan: Plan, results: Mapping[str, SwarmResult]) -> dict[str, Any]:
    """The best single drafter of each request: whose accepted tokens per round are most, or whose time is least."""
    together: dict[int, Served] = {}
    alone: dict[int, list[Served]] = {}
    mismatches = 0
    for name, cell in plan.cells():
        result = results[repr(cell)]
        mismatches += result.mismatches
        for number, served in result.served.items():
            if name:
                alone.setdefault(number, []).append(served)
            else:
                together[number] = served
    best = [max(alone[number], key=lambda served: served.accepted / served.rounds) for number in together]
    ours, theirs = _per_round(list(together.values())), _per_round(best)
    seconds = sum(served.seconds for served in together.values())
    least_s = sum(min(served.seconds for served in alone[number]) for number in together)
    return {
        "part": "simulation",
        "case": plan.case,
        "swarm": list(plan.swarm),
        "drafters": plan.count,
        "selection": "the verifier's own" if plan.base.nodes is None else f"at most {plan.base.nodes} nodes",
        "temperature": plan.base.temperature,
        "fused_accepted_per_round": ours,
        "best_single_accepted_per_round": theirs,
        "ratio": ours / theirs if theirs else None,
        "speedup_ratio": least_s / seconds,
        "requests": len(together),
        "mismatches": mismatches,
    }


def _per_round(served: Sequence[Served]) -> float:
    return sum(one.accepted for one in served) / max(1, sum(one.rounds for one in served))
