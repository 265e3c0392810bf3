"""An experiment: its options, the cells that it runs over worker processes, and its result as one JSON object.

A cell is one simulated run on recorded generations. An experiment defines its cells and the meaning of its rows;
`here` uses only the options.
"""

import os
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass, field, replace
from functools import cache, cached_property
from multiprocessing import get_context
from typing import Any, Final, Self, TypeVar

from cosine_engine import zoo
from cosine_engine.ngram import FollowerIndex
from cosine_engine.zoo.family import Family
from cosine_lab.emulation.traces import Trace, TraceSet
from cosine_lab.experiments.entrants import (
    COUPLED,
    OURS,
    POLICIES,
    SHIPS,
    OptionValues,
    RequestCase,
    entrant,
)
from cosine_lab.simulation.participants import identity_of
from cosine_lab.simulation.records import DIGEST, facts_of
from cosine_lab.simulation.report import SimulationReport
from cosine_lab.simulation.running import run_scenario
from cosine_lab.simulation.scenario import DECISION_S, EngineSource, Scenario, curves
from cosine_lab.simulation.swarm import numbered_nonces
from cosine_lab.simulation.workload import LOOKUP, TEST_SPLIT, ModelWorkload, TraceWorkload, Workload
from cosine_p2p.strategy.base import StrategyKind
from cosine_protocol.digests import request_digest
from cosine_protocol.errors import UsageError
from cosine_protocol.request import Request

EXPERTS: Final[tuple[str, ...]] = zoo.DOMAINS
"""The domains of prompts, each of which has an expert."""
EXPERTS_OF: Final[Mapping[Family, tuple[str, ...]]] = {
    Family.TOY: EXPERTS,
    Family.SMOL: ("code", "math", "medical", "dialogue"),
}
"""The domains of each family's recorded texts."""
DRAFTER_DOMAINS: Final = (*EXPERTS, "general", LOOKUP)
"""The expertise of the drafters of a cell, including a generalist and one that copies the text."""
DRAFTER_MODEL: Final = "draft-"
"""The prefix of a drafter's name in traces, before its expertise."""
RECORDED_TOKENS: Final = 128
"""Tokens of the longest recorded generation."""
TUNE_SPLIT: Final = "tune"
"""The recorded generations for tuning rivals; measurements use `TEST_SPLIT`."""
SHOWN_TOKENS: Final = (1, 4, 8, 16, 32, 64)
"""The pass lengths whose emulated time a setup names: the corners of the emulated curve and one more."""

JsonRow = dict[str, Any]
Say = Callable[[str], None]
_Item = TypeVar("_Item")
_Done = TypeVar("_Done")


@dataclass(frozen=True, slots=True, kw_only=True)
class ExperimentOptions:
    """The options that experiments share. Equal seeds give equal figures, for any number of `processes`."""

    seed: int = 0
    processes: int = field(default_factory=lambda: os.cpu_count() or 1)

    @classmethod
    def quick(cls) -> Self:
        """Return the smallest form, for tests and trials."""
        raise NotImplementedError


def setup_of(options: ExperimentOptions, **told: Any) -> JsonRow:
    """Return the setup of a result: all options but the number of processes, and further facts."""
    return {**{name: value for name, value in asdict(options).items() if name != "processes"}, **told}


def emulated(profiles: Iterable[str], rtt_ms: float | Sequence[float]) -> JsonRow:
    """Return the emulation for a setup: milliseconds of passes by tokens, of links, and of a client's write."""
    return {
        "emulated_pass_ms": {
            profile: {
                role: {str(tokens): round(1e3 * curve.seconds(tokens), 3) for tokens in SHOWN_TOKENS}
                for role, curve in zip(("verifier", "drafter"), curves(profile), strict=True)
            }
            for profile in profiles
        },
        "emulated_rtt_ms": rtt_ms,
        "emulated_client_decision_ms": 1e3 * DECISION_S,
    }


def grouped(rows: Iterable[JsonRow], *names: str) -> dict[tuple[Any, ...], list[JsonRow]]:
    """Group rows by the values of some fields, in the order of the first row of each."""
    groups: dict[tuple[Any, ...], list[JsonRow]] = {}
    for row in rows:
        groups.setdefault(tuple(row[name] for name in names), []).append(row)
    return groups


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompts:
    """Return the recorded prompts of a cell: the first `count` of a split, or all, with the domains in turn.

    Every `order` but 0 is random.
    """

    split: str = TEST_SPLIT
    count: int | None = None
    family: Family = Family.TOY
    order: int = 0

    def traces(self, temperature: float) -> Sequence[Trace]:
        """Return the traces at a temperature. Raises `UsageError` if there are none."""
        known = shipped_traces(self.family)
        experts = EXPERTS_OF[self.family]
        chosen = known.select(split=self.split, temperature=temperature, domains=experts)[: self.count]
        if not chosen:
            raise UsageError(f"There is no trace at temperature {temperature:g} in the split {self.split!r}.")
        return random.Random(self.order).sample(chosen, len(chosen)) if self.order else chosen


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One run, in a form that processes can exchange.

    `choice` holds the options of the entrant `strategy`; `scenario` the fields of `Scenario` that differ from the
    cell's defaults: one client with consecutive prompts, and one drafter of every kind.
    """

    strategy: str = OURS.name
    choice: OptionValues = field(default_factory=dict)
    scenario: Mapping[str, Any] = field(default_factory=dict)
    prompts: Prompts = Prompts()

    def __str__(self) -> str:
        options = ", ".join(f"{name}={value}" for name, value in (*self.scenario.items(), *self.choice.items()))
        return f"{self.strategy} ({options})"


@dataclass(frozen=True)
class CellResult:
    """The report of a cell's run, in virtual time, with the number of the trace of each request."""

    report: SimulationReport
    traces: tuple[int, ...]

    @cached_property
    def seconds(self) -> dict[int, float]:
        """The seconds of each prompt by the number of its trace."""
        return {number: r.seconds for number, r in zip(self.traces, self.report.results, strict=True)}

    @property
    def total_s(self) -> float:
        return sum(result.seconds for result in self.report.results)

    @property
    def ms_per_token(self) -> float:
        return 1e3 * self.total_s / self.report.tokens

    @property
    def accepted_per_round(self) -> float:
        results = self.report.results
        return sum(result.accepted for result in results) / max(1, sum(result.rounds for result in results))

    @property
    def checks(self) -> dict[str, int]:
        """Return the fields of a row with the number of compared tokens, mismatches and violations."""
        report = self.report
        return {
            "tokens": report.tokens,
            "mismatches": report.mismatches,
            "violations": len(report.violations()),
        }


def sum_of_checks(rows: Sequence[Mapping[str, Any]]) -> dict[str, int]:
    """Return the findings on mismatches and violations of all rows."""
    return {name: sum(row[name] for row in rows) for name in ("mismatches", "violations")}


def run_cell(cell: Cell, models: ModelWorkload | None = None) -> CellResult:
    """Run a cell, with `models` in place of recorded candidates if given.

    Raises `UsageError` for an impossible cell, and for a request that did not finish.
    """
    plays = entrant(cell.strategy)
    scenario, traces = staged(cell)
    recorded = TraceWorkload(scenario, traces)
    workload: Workload = models or recorded
    cases = _cases(scenario, recorded, cell) if models is None else {}
    options: dict[str, Any] = {"policy": POLICIES[cell.choice.get("policy", "ours")]}
    # With the default options a client finds the number of drafters by trial; otherwise the options set it.
    counts = plays.kind.drafter_counts if cell.choice.get("policy") == SHIPS else ()
    kind: StrategyKind = replace(
        plays.kind, make=lambda root: plays.build(root, cell.choice, cases.get(root)), drafter_counts=counts
    )
    report = run_scenario(scenario, strategies={kind.name: kind}, workload=workload, verifier_options=options)
    if len(report.finished) < scenario.total_requests:
        raise UsageError(f"{cell}: {scenario.total_requests - len(report.finished)} requests did not finish.")
    numbers = [traces[number % len(traces)].number for number in range(scenario.total_requests)]
    return CellResult(report, tuple(numbers))


def staged(cell: Cell) -> tuple[Scenario, Sequence[Trace]]:
    """Return the scenario and the traces of a cell. Raises `UsageError`."""
    fields: dict[str, Any] = {
        "domains": drafter_domains(cell.prompts.family),
        "max_new_tokens": RECORDED_TOKENS,
        "law": cell.choice.get("law", COUPLED),
        "temperature": 0.0,
    } | dict(cell.scenario)
    traces = cell.prompts.traces(fields["temperature"])
    fields = {"drafters": len(fields["domains"]), "requests": len(traces)} | fields
    return Scenario(name="bench", source=EngineSource.TRACES, strategy=cell.strategy, **fields), traces


def _cases(scenario: Scenario, workload: TraceWorkload, cell: Cell) -> dict[bytes, RequestCase]:
    """Return the facts that an entrant may know of each request, by the digest that its strategy is made with."""
    # A client lists one drafter of each expertise, in the order of their names, before a second of any
    # (`cosine_p2p.directory.selection`); it numbers authors in that order.
    present = sorted({scenario.domain(index) for index in range(scenario.drafters)})
    numbers = {f"{DRAFTER_MODEL}{domain}": author for author, domain in enumerate(present, 1)}
    cases = {}
    for client in range(scenario.clients):
        peer_id = identity_of("client", client).peer_id
        nonces = numbered_nonces(peer_id)
        for number in range(client, scenario.total_requests, scenario.clients):
            task = workload.task(number)
            request = Request(
                target_digest=facts_of(workload.eos).digest(),
                tokenizer_digest=DIGEST,
                numerics=workload.target(0).numerics,
                prompt=task.prompt,
                sampling=task.sampling,
                eos=workload.eos,
                client=peer_id,
                nonce=nonces(),
                max_new_tokens=task.max_new_tokens,
            )
            trace = workload.traces.find(task.prompt)
            ranked = best_drafters(trace.domain, trace.temperature, cell.prompts.family)
            authors = tuple(numbers[model] for model in ranked if model in numbers)
            cases[request_digest(request)] = RequestCase(trace, authors)
    return cases


@cache
def drafter_domains(family: Family) -> tuple[str, ...]:
    """Return the expertise of the drafters of a cell: the family's, and one that copies the text."""
    if family is Family.TOY:
        return DRAFTER_DOMAINS
    recorded = next(iter(shipped_traces(family))).drafters
    return (*(model.removeprefix(DRAFTER_MODEL) for model in recorded), LOOKUP)


@cache
def best_drafters(domain: str, temperature: float, family: Family = Family.TOY) -> tuple[str, ...]:
    """Rank the drafters by how often their first choice is the target's token in a domain, on the split "tune"."""
    traces = shipped_traces(family).select(split=TUNE_SPLIT, temperature=temperature, domains=(domain,))
    hits = {
        model: sum(int((t.drafters[model].candidate_tokens[:, 0] == t.stream).sum()) for t in traces)
        for model in traces[0].drafters
    }
    hits[f"{DRAFTER_MODEL}{LOOKUP}"] = sum(lookup_hits(trace.stream) for trace in traces)
    return tuple(sorted(hits, key=lambda model: (-hits[model], model)))


def lookup_hits(stream: Sequence[int]) -> int:
    """Return the number of tokens of a stream that prompt lookup in the text before them finds first."""
    index, hits = FollowerIndex(), 0
    for token in stream:
        hits += [found for found, _ in index.estimate().found[:1]] == [token]
        index.extend([token])
    return hits


@cache
def shipped_traces(family: Family = Family.TOY) -> TraceSet:
    """Return the recorded generations of a family, read once in each process."""
    return TraceSet.load_shipped(family)


def in_processes(
    work: Callable[[_Item], _Done], items: Sequence[_Item], *, processes: int, say: Say
) -> list[_Done]:
    """Apply `work` to every item, in order. With one process it is this one."""
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
