"""Do several drafters bring more than the best single one, known in hindsight, at the same budget of nodes?"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any, Final

from cosine_lab.experiments.cooperation_replay import RoundCounts, changing, drafters_of, replay_alone, replay_fused
from cosine_lab.experiments.experiment import (
    EXPERTS,
    RECORDED_TOKENS,
    Cell,
    CellResult,
    ExperimentOptions,
    JsonRow,
    Prompts,
    Say,
    emulated,
    grouped,
    in_processes,
    run_cell,
    setup_of,
    shipped_traces,
)
from cosine_lab.simulation.traces import Trace
from cosine_lab.simulation.workload import LOOKUP, TEST_SPLIT
from cosine_protocol.errors import UsageError

# The cases, as they stand in the JSON file.
ABSENT: Final = "expert absent"
CHANGING: Final = "domain changes"
PRESENT: Final = "expert present"
CASES: Final = (ABSENT, CHANGING, PRESENT)
SWARMS: Final[Mapping[str, tuple[str, ...]]] = {
    "experts": EXPERTS,
    "experts and generalist": (*EXPERTS, "general"),
    "experts and lookup": (*EXPERTS, LOOKUP),
    "experts, generalist and lookup": (*EXPERTS, "general", LOOKUP),
}
"""The drafters of each swarm. `lookup` has no model and copies from the text so far."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CooperationOptions(ExperimentOptions):
    """The replay and the simulation. `prompts` bounds those of each temperature, in turn from every domain.

    `budgets` are draft nodes verified in a pass. Requests that change domain do so after `change_at_tokens`, to go
    on for as many. The simulation runs `simulated_prompts` prompts for `simulated_tokens` with `simulated_swarm`,
    with at most `simulated_nodes` draft nodes a pass and `drafters` of the swarm at work at once.
    """

    split: str = TEST_SPLIT
    temperatures: tuple[float, ...] = (0.0, 0.8)
    swarms: tuple[str, ...] = tuple(SWARMS)
    budgets: tuple[int, ...] = (4, 8, 16, 32)
    prompts: int = 80
    simulated_swarm: str = "experts and lookup"
    change_at_tokens: int = 64
    simulated_prompts: int = 48
    simulated_tokens: int = RECORDED_TOKENS
    simulated_nodes: int = 8
    drafters: int = 3
    profile: str = "60/6"
    rtt_ms: float = 20.0

    @classmethod
    def quick(cls) -> "CooperationOptions":
        return cls(
            temperatures=(0.0,),
            swarms=("experts and lookup",),
            budgets=(8,),
            prompts=3,
            change_at_tokens=12,
            simulated_swarm="experts",
            simulated_prompts=1,
            simulated_tokens=24,
            drafters=2,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class CasePrompts(Prompts):
    """The prompts of a case, of one domain unless that is empty.

    `change_at` above 0 makes requests that change domain there; `tokens` bounds them all.
    """

    domain: str = ""
    change_at: int = 0
    tokens: int = RECORDED_TOKENS
    seed: int = 0

    def traces(self, temperature: float) -> Sequence[Trace]:
        known: Sequence[Trace] = shipped_traces().select(split=self.split, temperature=temperature)
        if self.change_at:
            known = changing(known, at=self.change_at, rest_tokens=self.change_at, seed=self.seed)
        own = [trace for trace in known[: self.count] if self.domain in ("", trace.domain)]
        if not own:
            raise UsageError(f"There is no prompt for {self}.")
        return [trace.shortened(self.tokens) for trace in own]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayCase:
    """One case to replay: a swarm at one budget and temperature."""

    case: str
    swarm: str
    budget: int
    temperature: float
    prompts: CasePrompts

    def __str__(self) -> str:
        return f"{self.case}, {self.swarm}, {self.budget} nodes, temperature {self.temperature:g}"


@dataclass(frozen=True, slots=True)
class ComparedRequest:
    """One request: all drafters together, and each alone by its name."""

    domain: str
    fused: RoundCounts
    single: Mapping[str, RoundCounts]

    @property
    def best(self) -> str:
        """The drafter that alone had the most accepted tokens per round."""
        return max(sorted(self.single), key=lambda name: self.single[name].per_round)


def compared(case: ReplayCase) -> list[ComparedRequest]:
    """Every request of a case. A node's calibration is kept from request to request."""
    traces = case.prompts.traces(case.temperature)
    names = SWARMS[case.swarm]
    fused, single = drafters_of(names, traces), drafters_of(names, traces)
    found = []
    for trace in traces:
        cast = [name for name in names if case.case != ABSENT or name != trace.domain]
        numbered = {author: fused[name] for author, name in enumerate(sorted(cast), 1)}
        together = replay_fused(numbered, trace, budget=case.budget)
        alone = {name: replay_alone(single[name], trace, budget=case.budget) for name in cast}
        found.append(ComparedRequest(trace.domain, together, alone))
    return found


def run(options: CooperationOptions, *, say: Say) -> JsonRow:
    """Replay, then simulate; the result (docs/benchmarks.md)."""
    cases = list(replay_cases(options))
    say(f"{len(cases)} cases to replay")
    found = in_processes(compared, cases, processes=options.processes, say=say)
    rows = [replay_row(case, requests) for case, requests in zip(cases, found, strict=True)]
    simulated = _simulated(options, say)
    return {
        "what": "Accepted tokens per round of all drafters' fused tree against the best single drafter of each "
        "request, chosen in hindsight, at the same number of verified nodes.",
        "setup": {
            **setup_of(options),
            **emulated([options.profile], options.rtt_ms),
            "replay": "rounds without time: every drafter drafts as many nodes as are verified; calibration, "
            "fusion and router as in production; each request begins without knowledge of the one before",
            "best_single": "of each request, the drafter that alone had the most accepted tokens per round",
            "drafters_of_swarms": {name: SWARMS[name] for name in options.swarms},
            "lookup": "a drafter without a model that copies from the committed tokens; prompts are not recorded",
        },
        "rows": [*rows, *simulated],
        "findings": _findings(rows, simulated),
    }


def _prompts(options: CooperationOptions, case: str, **fields: Any) -> CasePrompts:
    change_at = options.change_at_tokens if case == CHANGING else 0
    return CasePrompts(split=options.split, change_at=change_at, seed=options.seed, **fields)


def replay_cases(options: CooperationOptions) -> Iterator[ReplayCase]:
    """Every case of every swarm at every budget and temperature."""
    for temperature, swarm, budget, case in product(options.temperatures, options.swarms, options.budgets, CASES):
        prompts = _prompts(options, case, count=options.prompts)
        yield ReplayCase(case=case, swarm=swarm, budget=budget, temperature=temperature, prompts=prompts)


def replay_row(case: ReplayCase, found: Sequence[ComparedRequest]) -> JsonRow:
    """All requests together; `ratio` is of accepted tokens per round."""
    by_domain = {d: [one for one in found if one.domain == d] for d in dict.fromkeys(one.domain for one in found)}
    fused = sum_of(one.fused for one in found)
    best = sum_of(one.single[one.best] for one in found)
    # The one drafter that is best for all requests of a domain.
    always = [
        max((sum_of(one.single[name] for one in own) for name in own[0].single), key=lambda count: count.per_round)
        for _, own in sorted(by_domain.items())
    ]
    ratios = {
        domain: sum_of(one.fused for one in own).per_round / sum_of(one.single[one.best] for one in own).per_round
        for domain, own in by_domain.items()
        if case.case != CHANGING
    }
    return {
        "part": "replay",
        "case": case.case,
        "swarm": case.swarm,
        "temperature": case.temperature,
        "budget_nodes": case.budget,
        "fused_accepted_per_round": fused.per_round,
        "best_single_accepted_per_round": best.per_round,
        "ratio": fused.per_round / best.per_round,
        "always_the_same_ratio": fused.per_round / sum_of(always).per_round,
        "requests_not_behind": sum(one.fused.per_round >= one.single[one.best].per_round for one in found),
        "requests": len(found),
        "best_single": dict(Counter(one.best for one in found).most_common()),
        "ratio_by_domain": ratios,
    }


def sum_of(counts: Iterable[RoundCounts]) -> RoundCounts:
    """Rounds and accepted tokens of several requests together."""
    known = list(counts)
    return RoundCounts(sum(count.rounds for count in known), sum(count.accepted for count in known))


def swarm_cell(
    options: CooperationOptions, case: str, temperature: float, *, domain: str, drafters: Sequence[str]
) -> Cell:
    """Cosine with these drafters on the prompts of a case; as many are at work at once as the options allow."""
    tokens = options.simulated_tokens
    return Cell(
        choice={"policy": "no-dropping", "drafters": min(options.drafters, len(drafters))},
        scenario={
            "seed": options.seed,
            "domains": tuple(drafters),
            "profile": options.profile,
            "rtt_ms": options.rtt_ms,
            "temperature": temperature,
            "max_new_tokens": tokens,
        },
        prompts=_prompts(options, case, domain=domain, count=options.simulated_prompts, tokens=tokens),
        budget_tokens=1 + options.simulated_nodes,
    )


def _simulated(options: CooperationOptions, say: Say) -> list[JsonRow]:
    """One row for each case and temperature: the swarm, and each of its drafters alone."""
    swarm = SWARMS[options.simulated_swarm]
    cells: dict[tuple[float, str, str, str], Cell] = {}
    for temperature, case in product(options.temperatures, CASES):
        # Without its expert each domain has a swarm of its own; the name of nobody means all together.
        for domain in EXPERTS[: options.simulated_prompts] if case == ABSENT else ("",):
            cast = [name for name in swarm if name != domain]
            for name in ("", *cast):
                drafters = (name,) if name else cast
                cells[temperature, case, domain, name] = swarm_cell(
                    options, case, temperature, domain=domain, drafters=drafters
                )
    say(f"{len(cells)} cells to simulate")
    results = in_processes(run_cell, list(cells.values()), processes=options.processes, say=say)
    found: dict[tuple[float, str], dict[str, list[CellResult]]] = {}
    for (temperature, case, _, name), result in zip(cells, results, strict=True):
        empty: dict[str, list[CellResult]] = {one: [] for one in ("", *swarm)}
        found.setdefault((temperature, case), empty)[name].append(result)
    return [
        {
            "part": "simulation",
            "case": case,
            "swarm": list(swarm),
            "drafters": options.drafters,
            "selection": f"at most {options.simulated_nodes} nodes",
            "temperature": temperature,
            **_simulated_figures(by_name),
        }
        for (temperature, case), by_name in found.items()
    ]


def _simulated_figures(found: Mapping[str, Sequence[CellResult]]) -> JsonRow:
    """All drafters together, under the name of nobody, against the best one alone for each request."""
    requests = {
        name: {
            number: request
            for result in results
            for number, request in zip(result.traces, result.report.results, strict=True)
        }
        for name, results in found.items()
    }
    together = requests.pop("")
    alone = {number: [own[number] for own in requests.values() if number in own] for number in together}
    best = [max(them, key=lambda one: one.accepted / one.rounds) for them in alone.values()]
    ours, theirs = (
        sum_of(RoundCounts(one.rounds, one.accepted) for one in them).per_round
        for them in (together.values(), best)
    )
    least_s = sum(min(one.seconds for one in them) for them in alone.values())
    return {
        "fused_accepted_per_round": ours,
        "best_single_accepted_per_round": theirs,
        "ratio": ours / theirs if theirs else None,
        "speedup_ratio": least_s / sum(one.seconds for one in together.values()),
        "requests": len(together),
        "mismatches": sum(result.report.mismatches for results in found.values() for result in results),
    }


def _findings(rows: Sequence[JsonRow], simulated: Sequence[JsonRow]) -> JsonRow:
    cells = grouped(rows, "swarm", "case")
    ranges = [
        {
            "case": case,
            "swarm": swarm,
            "lowest_ratio": min(row["ratio"] for row in own),
            "highest_ratio": max(row["ratio"] for row in own),
        }
        for (swarm, case), own in cells.items()
    ]
    names = ("case", "selection", "drafters", "temperature", "ratio", "speedup_ratio")
    return {
        "replay": ranges,
        "simulation": [{name: row[name] for name in names} for row in simulated],
        "mismatches": sum(row["mismatches"] for row in simulated),
    }
