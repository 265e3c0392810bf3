"""Every strategy against the round-trip time: one request at a time, equal machines, rivals tuned for each cell."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import Any, Final

from cosine_node.bench.ablation import variants
from cosine_node.bench.entrants import COUPLED, DSI_2, LOOKS_UP, ORACLE, OURS, PLAIN, RIVALS, OptionValues, entrant
from cosine_node.bench.experiment import (
    RECORDED_TOKENS,
    Cell,
    CellResult,
    ExperimentOptions,
    JsonRow,
    Prompts,
    Say,
    emulated,
    in_processes,
    run_cell,
    setup_of,
)
from cosine_node.bench.rtt_findings import findings_of
from cosine_node.bench.tuning import Place, Search, tune

BOUNDS: Final[Mapping[str, Mapping[str, Any]]] = {
    "ours": {},
    "the coordinator knows": {"decision_s": 0.0},
    "drafters know too": {"decision_s": 0.0, "is_oracle": True},
}
"""Runs that know the stream, by label with their fields of `Scenario`; the first is ours beside them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RttOptions(ExperimentOptions):
    """The sweep. `profile` and `side_profiles` as in `Scenario`; the latter are run at `main_rtt_ms` alone.

    The sweep runs `prompts` prompts of each temperature, everything beside it at most `side_prompts`. The parts of
    cosine, the bounds on it, and rivals with the verifier's prompt lookup are measured at those of `focus_rtts_ms`
    that are swept. `tuning_prompts`, `tuning_tokens` and `trials` are those of `Search`.
    """

    rtts_ms: tuple[float, ...] = (0.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 300.0)
    main_rtt_ms: float = 20.0
    focus_rtts_ms: tuple[float, ...] = (20.0, 100.0)
    temperatures: tuple[float, ...] = (0.0, 0.8)
    profile: str = "60/6"
    side_profiles: tuple[str, ...] = ("25/8", "40/3", "a100-80gb:70B/rtx-4090:1B")
    rivals: tuple[str, ...] = tuple(rival.name for rival in RIVALS)
    with_more: tuple[str, ...] = (DSI_2.name,)
    prompts: int = 80
    side_prompts: int = 30
    max_new_tokens: int = RECORDED_TOKENS
    tuning_prompts: int = 6
    tuning_tokens: int = 64
    trials: int = 3

    @classmethod
    def quick(cls) -> "RttOptions":
        return cls(
            rtts_ms=(20.0,),
            focus_rtts_ms=(20.0,),
            temperatures=(0.0,),
            side_profiles=(),
            rivals=("speculative",),
            with_more=(),
            prompts=2,
            side_prompts=1,
            max_new_tokens=24,
            tuning_prompts=1,
            tuning_tokens=8,
            trials=0,
        )

    def places(self, profiles: Sequence[str], rtts_ms: Sequence[float]) -> list[Place]:
        """Points of the sweep, or beside it, at every temperature."""
        return [
            Place(profile, rtt_ms, temperature)
            for temperature, profile, rtt_ms in product(self.temperatures, profiles, rtts_ms)
        ]

    def cell(self, strategy: str, place: Place, choice: OptionValues, *, prompts: int, **more: Any) -> Cell:
        """The cell of a strategy at a point; `more` are fields of its scenario."""
        scenario = {**place._asdict(), "seed": self.seed, "max_new_tokens": self.max_new_tokens, **more}
        return Cell(strategy=strategy, choice=choice, scenario=scenario, prompts=Prompts(count=prompts))


Tuned = Mapping[tuple[str, Place], OptionValues]
"""Option values of a strategy by its name, for each point."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedRow:
    """A row to measure, and what the row says beside."""

    part: str
    place: Place
    cell: Cell
    labels: Mapping[str, str] = field(default_factory=dict)


def run(options: RttOptions, *, say: Say) -> JsonRow:
    """Tune every rival for each point, then measure everybody; the result (docs/benchmarks.md)."""
    plans = list(planned(options, _tuned(options, say)))
    say(f"{len(plans)} cells to measure")
    results = in_processes(run_cell, [plan.cell for plan in plans], processes=options.processes, say=say)
    measured = list(zip(plans, results, strict=True))
    # Plain decoding at each point: that of the sweep, which comes first, has the most prompts.
    plain = {plan.place: result for plan, result in reversed(measured) if plan.cell.strategy == PLAIN.name}
    rows = [row_of(plan, result, plain[plan.place]) for plan, result in measured]
    return {
        "what": "How many times as fast as plain decoding each strategy is, by the round-trip time between any two "
        "machines, for one request at a time.",
        "setup": {
            **setup_of(options),
            **emulated([options.profile, *options.side_profiles], options.rtts_ms),
            "rtt": "between every pair of machines, so a draft relayed by the client waits two one-way delays",
            "drafters": "one of the embedded family for each of five domains, a general one, one that copies text",
            "tuned_over": {name: entrant(name).grid for name in options.rivals},
        },
        "rows": rows,
        "findings": findings_of(rows, main_rtt_ms=options.main_rtt_ms),
    }


def _tuned(options: RttOptions, say: Say) -> Tuned:
    """The best option values of every rival at every point, from the middle of the sweep outwards."""
    middle, rtts_ms = options.main_rtt_ms, sorted(options.rtts_ms)
    outwards = [
        (options.profile, [rtt_ms for rtt_ms in reversed(rtts_ms) if rtt_ms < middle]),
        (options.profile, [rtt_ms for rtt_ms in rtts_ms if rtt_ms > middle]),
        *((profile, [middle]) for profile in options.side_profiles),
    ]
    searches = [
        Search(
            strategy=name,
            seed=options.seed,
            first=Place(options.profile, middle, temperature),
            branches=tuple(
                tuple(Place(profile, rtt_ms, temperature) for rtt_ms in branch) for profile, branch in outwards
            ),
            prompts=options.tuning_prompts,
            tokens=options.tuning_tokens,
            trials=options.trials,
        )
        for name, temperature in product((*options.rivals, *options.with_more), options.temperatures)
    ]
    found = in_processes(tune, searches, processes=options.processes, say=say)
    return {
        (search.strategy, place): choice
        for search, choices in zip(searches, found, strict=True)
        for place, choice in choices.items()
    }


def planned(options: RttOptions, tuned: Tuned) -> Iterator[PlannedRow]:
    """The sweep, other machines, free pacing with prompt lookup in the verifier, and the parts of ours."""
    all_prompts, few = options.prompts, min(options.side_prompts, options.prompts)
    sweep = options.places([options.profile], options.rtts_ms)
    sides = options.places(options.side_profiles, [options.main_rtt_ms])
    for part, places, prompts in (("sweep", sweep, all_prompts), ("profile", sides, few)):
        for place in places:
            for name in (PLAIN.name, OURS.name, *options.rivals):
                cell = options.cell(name, place, tuned.get((name, place), {}), prompts=prompts)
                yield PlannedRow(part=part, place=place, cell=cell)
            for name in options.with_more if part == "sweep" and place.rtt_ms in options.focus_rtts_ms else ():
                cell = options.cell(name, place, tuned[name, place], prompts=prompts)
                yield PlannedRow(part="more", place=place, cell=cell)
    free = [name for name in options.rivals if not entrant(name).kind.is_stepped]
    for place in sweep:
        for name in (OURS.name, *(free if place.rtt_ms in options.focus_rtts_ms else ())):
            # As it is shipped to do; elsewhere a drafter looks up the text.
            choice = {**tuned.get((name, place), {}), "policy": LOOKS_UP}
            cell = options.cell(name, place, choice, prompts=all_prompts)
            yield PlannedRow(part="own lookup", place=place, cell=cell)
    focus = [rtt_ms for rtt_ms in options.focus_rtts_ms if rtt_ms in options.rtts_ms]
    for place in options.places([options.profile], focus):
        for variant in variants():
            cell = options.cell(OURS.name, place, variant.choice, prompts=few)
            labels = {"order": variant.order, "label": variant.label}
            yield PlannedRow(part="ablation", place=place, cell=cell, labels=labels)
        for label, scenario in BOUNDS.items():
            cell = options.cell(ORACLE.name if scenario else OURS.name, place, {}, prompts=few, **scenario)
            yield PlannedRow(part="oracle", place=place, cell=cell, labels={"label": label})


def row_of(plan: PlannedRow, result: CellResult, plain: CellResult) -> JsonRow:
    """A row, with `plain` the plain decoding of the same prompts, and perhaps of more, at the same point."""
    kind, choice = entrant(plan.cell.strategy).kind, plan.cell.choice
    ratios = [plain.seconds[number] / seconds for number, seconds in result.seconds.items()]
    return {
        "part": plan.part,
        **plan.labels,
        "strategy": plan.cell.strategy,
        **plan.place._asdict(),
        "verifiers": kind.verifiers,
        "speedup": sum(plain.seconds[number] for number in result.seconds) / result.total_s,
        "worst_prompt_speedup": min(ratios),
        "options": {name: value for name, value in choice.items() if name not in ("law", "policy")},
        "law": choice.get("law", COUPLED),
        "policy": "as the strategy asks" if kind.is_stepped else choice.get("policy", "ours"),
        "accepted_tokens_per_round": result.accepted_per_round,
        "gpu_seconds_per_token": result.report.seconds_per_token,
        "bytes_per_token": result.report.bytes_per_token,
        "prompts": len(result.seconds),
        "seconds": result.total_s,
        **result.checks,
    }
