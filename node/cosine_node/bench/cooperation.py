"""Do several drafters bring more than the best single one, known in hindsight, at the same budget of nodes?"""

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from cosine_node.bench.cells import TEST, Say, all_processors, in_processes
from cosine_node.bench.cooperation_cells import Plan, SwarmCell, compare_swarms
from cosine_node.bench.cooperation_replay import (
    PromptLookup,
    RecordedDrafter,
    ReplayDrafter,
    RoundCounts,
    changing,
    replay_alone,
    replay_fused,
)
from cosine_node.simulation.scenario import DECISION_S
from cosine_node.simulation.traces import Trace, TraceSet
from cosine_node.simulation.workload import LOOKUP

NAME: Final = "cooperation"
COMMAND: Final = f"cosine-node bench {NAME}"
ABSENT: Final = "expert absent"
CHANGING: Final = "domain changes"
PRESENT: Final = "expert present"
CASES: Final = (ABSENT, CHANGING, PRESENT)
EXPERTS: Final = ("code", "math", "medical", "dialogue", "literature")
SWARMS: Final[Mapping[str, tuple[str, ...]]] = {
    "experts": EXPERTS,
    "experts and generalist": (*EXPERTS, "general"),
    "experts and lookup": (*EXPERTS, LOOKUP),
    "experts, generalist and lookup": (*EXPERTS, "general", LOOKUP),
}
"""Who drafts. `lookup` has no model and copies from the text so far."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CooperationOptions:
    """What to replay and to simulate. `prompts` bounds those of each temperature, in turn from every domain.

    `budgets` are draft nodes verified in a pass. Requests that change domain do so after `change_at_tokens`, to go
    on for as many. The simulation runs `simulated_prompts` prompts for `simulated_tokens` with `simulated_swarm`,
    with at most each of `simulated_nodes` draft nodes a pass, None for the verifier's own selection, and by each of
    `drafters` as many of them at work at once.
    """

    seed: int = 0
    processes: int = field(default_factory=all_processors)
    split: str = TEST
    temperatures: tuple[float, ...] = (0.0, 0.8)
    swarms: tuple[str, ...] = tuple(SWARMS)
    budgets: tuple[int, ...] = (4, 8, 16, 32)
    prompts: int = 80
    simulated_swarm: str = "experts and lookup"
    change_at_tokens: int = 64
    simulated_prompts: int = 48
    simulated_tokens: int = 128
    simulated_nodes: tuple[int | None, ...] = (8,)
    drafters: tuple[int, ...] = (3,)
    profile: str = "60/6"
    rtt_ms: float = 20.0

    @classmethod
    def quick(cls) -> "CooperationOptions":
        """The smallest form, for tests and a look."""
        return cls(
            temperatures=(0.0,),
            swarms=("experts and lookup",),
            budgets=(8,),
            prompts=3,
            change_at_tokens=12,
            simulated_swarm="experts",
            simulated_prompts=1,
            simulated_tokens=24,
            drafters=(2,),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Matter:
    """One case to replay: a swarm at one budget and temperature."""

    case: str
    swarm: str
    budget: int
    temperature: float
    split: str
    prompts: int
    change_at: int
    seed: int

    def __str__(self) -> str:
        return f"{self.case}, {self.swarm}, {self.budget} nodes, temperature {self.temperature:g}"


@dataclass(frozen=True, slots=True)
class Compared:
    """One request: all drafters together, and each alone by its name."""

    domain: str
    fused: RoundCounts
    single: Mapping[str, RoundCounts]

    @property
    def best(self) -> str:
        """Who alone had the most accepted tokens per round."""
        return max(sorted(self.single), key=lambda name: self.single[name].per_round)


def compared(matter: Matter) -> list[Compared]:
    """Every request of a matter. What a node learns of its claims it keeps from request to request."""
    traces = requests_of(matter)
    names = SWARMS[matter.swarm]
    sources = {
        name: PromptLookup() if name == LOOKUP else RecordedDrafter(TraceSet(traces), f"draft-{name}")
        for name in names
    }
    fused = {name: ReplayDrafter(source) for name, source in sources.items()}
    single = {name: ReplayDrafter(source) for name, source in sources.items()}
    found = []
    for trace in traces:
        cast = [name for name in names if matter.case != ABSENT or name != trace.domain]
        numbered = {author: fused[name] for author, name in enumerate(sorted(cast), 1)}
        found.append(
            Compared(
                trace.domain,
                replay_fused(numbered, trace, budget=matter.budget),
                {name: replay_alone(single[name], trace, budget=matter.budget) for name in cast},
            )
        )
    return found


def requests_of(matter: Matter) -> tuple[Trace, ...]:
    """The prompts that are replayed."""
    traces = TraceSet.load_shipped().select(split=matter.split, temperature=matter.temperature)
    if matter.case == CHANGING:
        traces = changing(traces, at=matter.change_at, rest_tokens=matter.change_at, seed=matter.seed)
    return traces[: matter.prompts]


def run(options: CooperationOptions, *, say: Say) -> dict[str, object]:
    """Replay, then simulate; one JSON object (docs/benchmarks.md)."""
    matters = list(_matters(options))
    say(f"{len(matters)} cases to replay")
    replayed = in_processes(compared, matters, processes=options.processes, say=say)
    rows = [_row(matter, found) for matter, found in zip(matters, replayed, strict=True)]
    more = compare_swarms(list(_plans(options)), processes=options.processes, say=say)
    return {
        "name": NAME,
        "what": "Accepted tokens per round of all drafters' fused tree against the best single drafter of each "
        "request, chosen in hindsight, at the same number of verified nodes.",
        "command": COMMAND,
        "setup": _setup(options),
        "rows": [*rows, *more],
        "findings": _findings(rows, more),
    }


def _matters(options: CooperationOptions) -> Iterator[Matter]:
    for temperature in options.temperatures:
        for swarm in options.swarms:
            for budget in options.budgets:
                for case in CASES:
                    yield Matter(
                        case=case,
                        swarm=swarm,
                        budget=budget,
                        temperature=temperature,
                        split=options.split,
                        prompts=options.prompts,
                        change_at=options.change_at_tokens,
                        seed=options.seed,
                    )


def _plans(options: CooperationOptions) -> Iterator[Plan]:
    """The simulated comparisons; a request that changes domain has no expert of its own to miss."""
    for temperature in options.temperatures:
        for nodes in options.simulated_nodes:
            for case in CASES:
                base = SwarmCell(
                    drafters=(),
                    nodes=nodes,
                    change_at=options.change_at_tokens if case == CHANGING else 0,
                    tokens=options.simulated_tokens,
                    temperature=temperature,
                    split=options.split,
                    prompts=options.simulated_prompts,
                    profile=options.profile,
                    rtt_ms=options.rtt_ms,
                    seed=options.seed,
                )
                for count in options.drafters:
                    yield Plan(
                        case=case,
                        without_expert=case == ABSENT,
                        domains=EXPERTS[: options.simulated_prompts] if case == ABSENT else ("",),
                        swarm=SWARMS[options.simulated_swarm],
                        count=count,
                        base=base,
                    )


def _row(matter: Matter, found: Sequence[Compared]) -> dict[str, Any]:
    """All requests together; `ratio` is of accepted tokens per round."""
    fused = _sum([one.fused for one in found])
    best = _sum([one.single[one.best] for one in found])
    domains: dict[str, list[Compared]] = defaultdict(list)
    for one in found:
        domains[one.domain].append(one)
    return {
        "part": "replay",
        "case": matter.case,
        "swarm": matter.swarm,
        "temperature": matter.temperature,
        "budget_nodes": matter.budget,
        "fused_accepted_per_round": fused.per_round,
        "best_single_accepted_per_round": best.per_round,
        "ratio": fused.per_round / best.per_round,
        "always_the_same_ratio": fused.per_round / _fixed(found).per_round,
        "requests_not_behind": sum(one.fused.per_round >= one.single[one.best].per_round for one in found),
        "requests": len(found),
        "best_single": dict(Counter(one.best for one in found).most_common()),
        "ratio_by_domain": {}
        if matter.case == CHANGING
        else {
            domain: _sum([one.fused for one in own]).per_round
            / _sum([one.single[one.best] for one in own]).per_round
            for domain, own in domains.items()
        },
    }


def _sum(tallies: Sequence[RoundCounts]) -> RoundCounts:
    return RoundCounts(sum(tally.rounds for tally in tallies), sum(tally.accepted for tally in tallies))


def _fixed(found: Sequence[Compared]) -> RoundCounts:
    """The one drafter that is best for all requests of a domain."""
    parts = []
    for domain in sorted({one.domain for one in found}):
        own = [one for one in found if one.domain == domain]
        sums = [_sum([one.single[name] for one in own]) for name in own[0].single]
        parts.append(max(sums, key=lambda tally: tally.per_round))
    return _sum(parts)


def _setup(options: CooperationOptions) -> dict[str, Any]:
    return {
        "traces": f"the split {options.split}, recorded from the embedded models",
        "replay": "rounds without time: every drafter drafts as many nodes as are verified; calibration, fusion "
        "and router as in production; each request begins without knowledge of the one before",
        "best_single": "of each request, whoever alone had the most accepted tokens per round",
        "swarms": {name: list(SWARMS[name]) for name in options.swarms},
        "lookup": "a drafter without a model that copies from the committed tokens; prompts are not recorded",
        "prompts": options.prompts,
        "change_at_tokens": options.change_at_tokens,
        "simulation": {
            "swarm": options.simulated_swarm,
            "prompts": options.simulated_prompts,
            "nodes_per_pass": list(options.simulated_nodes),
            "emulated_profile_ms": options.profile,
            "emulated_rtt_ms": options.rtt_ms,
            "emulated_client_decision_ms": 1e3 * DECISION_S,
        },
    }


def _findings(rows: Sequence[Mapping[str, Any]], simulated: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    return {
        "replay": [_range(rows, case, swarm) for swarm in _seen(rows, "swarm") for case in CASES],
        "simulation": [
            {name: row[name] for name in ("case", "selection", "drafters", "temperature", "ratio", "speedup_ratio")}
            for row in simulated
        ],
        "mismatches": sum(row["mismatches"] for row in simulated),
    }


def _seen(rows: Sequence[Mapping[str, Any]], name: str) -> list[Any]:
    return list(dict.fromkeys(row[name] for row in rows))


def _range(rows: Sequence[Mapping[str, Any]], case: str, swarm: str) -> dict[str, Any]:
    ratios = [row["ratio"] for row in rows if row["case"] == case and row["swarm"] == swarm]
    return {"case": case, "swarm": swarm, "lowest_ratio": min(ratios), "highest_ratio": max(ratios)}
