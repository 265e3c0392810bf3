"""One cell of an experiment: a strategy under one scenario on recorded prompts. Cells run in worker processes."""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from dataclasses import dataclass, field
from functools import cache
from multiprocessing import get_context
from typing import Any, Final, TypeVar

from cosine_node.bench.entrants import COUPLED, POLICIES, Case, Choice, Entrant, entrant
from cosine_node.engine.ngram import FollowerIndex
from cosine_node.simulation.report import SimulationReport
from cosine_node.simulation.running import run_scenario
from cosine_node.simulation.scenario import EngineSource, Scenario
from cosine_node.simulation.traces import Trace, TraceSet
from cosine_node.simulation.workload import LOOKUP, TraceWorkload
from cosine_p2p.strategies.base import Strategy, StrategyKind
from cosine_protocol.errors import UsageError

DOMAINS: Final = ("code", "math", "medical", "dialogue", "literature", "general", LOOKUP)
"""What the drafters of a cell are experts in; prompts are of all but the last two."""
RECORDED_TOKENS: Final = 128
TUNE: Final = "tune"
TEST: Final = "test"
_Item = TypeVar("_Item")
_Done = TypeVar("_Done")
Say = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """What to run, in words that travel between processes.

    `choice` holds the options of the entrant `strategy`; `scenario` fields of `Scenario` that differ from the
    cell's own: one client that asks for one prompt after the other, with one drafter of every kind. The first
    `prompts` traces of `split` are asked for, the domains taking turns.
    """

    strategy: str
    choice: Choice = field(default_factory=dict)
    scenario: Mapping[str, Any] = field(default_factory=dict)
    split: str = TEST
    prompts: int = 80

    def __str__(self) -> str:
        options = ", ".join(f"{name}={value}" for name, value in (*self.scenario.items(), *self.choice.items()))
        return f"{self.strategy} ({options})"


@dataclass(frozen=True, slots=True, kw_only=True)
class CellResult:
    """What a cell measured. `seconds` are those of each prompt by the number of its trace, in virtual time.

    `busy_s` is machine time of all nodes, `wall_s` what the cell took for real.
    """

    seconds: Mapping[int, float]
    tokens: int
    rounds: int
    drafted: int
    accepted: int
    busy_s: float
    bytes_per_token: float
    mismatches: int
    violations: tuple[str, ...]
    digest: str
    wall_s: float

    @property
    def total_s(self) -> float:
        return sum(self.seconds.values())

    @property
    def busy_s_per_token(self) -> float:
        return self.busy_s / self.tokens

    @property
    def accepted_per_round(self) -> float:
        return self.accepted / max(1, self.rounds)

    def speedup_over(self, plain: "CellResult") -> float:
        """How many times as fast the same prompts were, all together."""
        return sum(plain.seconds[number] for number in self.seconds) / self.total_s

    def worst_over(self, plain: "CellResult") -> float:
        """The same for the prompt that fared worst."""
        return min(plain.seconds[number] / seconds for number, seconds in self.seconds.items())


def run_cell(cell: Cell) -> CellResult:
    """Run a cell. Raises `UsageError` for what cannot be run, and for a request that did not finish."""
    plays = entrant(cell.strategy)
    scenario, workload = staged(cell, plays.verifiers)
    traces = [_shipped().find(workload.task(number).prompt) for number in range(scenario.total_requests)]
    kind = StrategyKind(
        name=plays.name,
        make=_made_in_turn(plays, cell.choice, [Case(t, _authors(scenario, t)) for t in traces]),
        is_stepped=plays.is_stepped,
        wants_drafters=plays.wants_drafters,
        verifiers=plays.verifiers,
    )
    policy = POLICIES[cell.choice.get("policy", "ours")]
    report = run_scenario(
        scenario, strategies={kind.name: kind}, workload=workload, verifier_options={"policy": policy}
    )
    if len(report.finished) < len(traces):
        raise UsageError(f"{cell}: {len(traces) - len(report.finished)} requests did not finish.")
    return _result(report, traces)


def staged(cell: Cell, verifiers: int) -> tuple[Scenario, TraceWorkload]:
    """The scenario and the prompts of a cell. Raises `UsageError`."""
    fields: dict[str, Any] = {"drafters": len(DOMAINS), "max_new_tokens": RECORDED_TOKENS, "temperature": 0.0}
    fields |= {"law": cell.choice.get("law", COUPLED), "verifiers": verifiers} | dict(cell.scenario)
    chosen = _shipped().select(split=cell.split, temperature=fields["temperature"])[: cell.prompts]
    if not chosen:
        raise UsageError(f"There is no trace at temperature {fields['temperature']:g} in the split {cell.split!r}.")
    scenario = Scenario(
        name="bench",
        source=EngineSource.TRACES,
        domains=DOMAINS,
        strategy=cell.strategy,
        requests=len(chosen),
        **fields,
    )
    return scenario, TraceWorkload(scenario, TraceSet(chosen))


def _made_in_turn(plays: Entrant, choice: Choice, cases: Sequence[Case]) -> Callable[[bytes], Strategy]:
    """Makes the strategy of each request, which come in order: one client asks for one after the other."""
    left: Iterator[Case] = iter(cases)
    return lambda root: plays.build(root, choice, next(left))


def _result(report: SimulationReport, traces: Sequence[Trace]) -> CellResult:
    return CellResult(
        seconds={trace.number: result.seconds for trace, result in zip(traces, report.results, strict=True)},
        tokens=report.tokens,
        rounds=sum(result.rounds for result in report.results),
        drafted=sum(result.drafted for result in report.results),
        accepted=sum(result.accepted for result in report.results),
        busy_s=sum(node.busy_s for node in report.nodes),
        bytes_per_token=report.bytes_per_token,
        mismatches=report.mismatches,
        violations=tuple(report.violations()),
        digest=report.digest,
        wall_s=report.wall_seconds,
    )


def _authors(scenario: Scenario, trace: Trace) -> tuple[int, ...]:
    """The authors of a scenario's drafters, the best for a trace's domain first."""
    # A client lists drafters of one expertise each in the order of their names (`cosine_p2p.selection`).
    present = sorted({scenario.domain(index) for index in range(scenario.drafters)})
    numbers = {f"draft-{domain}": author for author, domain in enumerate(present, 1)}
    return tuple(numbers[m] for m in best_drafters(trace.domain, trace.temperature) if m in numbers)


@cache
def best_drafters(domain: str, temperature: float) -> tuple[str, ...]:
    """The drafters by how often their first choice is the target's token in a domain, on the split "tune"."""
    traces = _shipped().select(split=TUNE, temperature=temperature, domains=(domain,))
    hits = {
        model: sum(int((t.drafters[model].candidate_tokens[:, 0] == t.stream).sum()) for t in traces)
        for model in traces[0].drafters
    }
    hits[f"draft-{LOOKUP}"] = sum(lookup_hits(trace.stream) for trace in traces)
    return tuple(sorted(hits, key=lambda model: (-hits[model], model)))


def lookup_hits(stream: Sequence[int]) -> int:
    """How many tokens of a stream are what lookup in the text before them says first."""
    index, hits = FollowerIndex(), 0
    for token in stream:
        hits += [said for said, _ in index.estimate().found[:1]] == [token]
        index.extend([token])
    return hits


@cache
def _shipped() -> TraceSet:
    return TraceSet.load_shipped()


def run_cells(cells: Sequence[Cell], *, processes: int, say: Say) -> list[CellResult]:
    """Run cells, each in a worker process, and say how far it is; results come in the order of the cells."""
    return in_processes(run_cell, cells, processes=processes, say=say)


def in_processes(
    work: Callable[[_Item], _Done], items: Sequence[_Item], *, processes: int, say: Say
) -> list[_Done]:
    """`work` of every item, in the order of the items. With one process it is this one."""
    done: list[_Done] = []
    if processes <= 1 or len(items) <= 1:
        for number, item in enumerate(items, 1):
            done.append(work(item))
            say(f"{number} of {len(items)}: {item}")
        return done
    with ProcessPoolExecutor(min(processes, len(items)), mp_context=get_context("spawn")) as pool:
        futures: dict[Future[_Done], _Item] = {pool.submit(work, item): item for item in items}
        for number, future in enumerate(as_completed(futures), 1):
            future.result()
            say(f"{number} of {len(items)}: {futures[future]}")
        return [future.result() for future in futures]


def all_processors() -> int:
    """How many worker processes this machine has room for."""
    return os.cpu_count() or 1
