"""Every strategy against the round-trip time: one request at a time, equal machines, rivals tuned for each cell."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import chain
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
from cosine_node.bench.tuning import Search, tune

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
    cosine and the bounds on it are measured at those of `focus_rtts_ms` that are swept. `tuning_prompts`,
    `tuning_tokens` and `trials` are those of `Search`.
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

    def points(self, profiles: Sequence[str], rtts_ms: Sequence[float]) -> list["SweepPoint"]:
        """Points of the sweep, or beside it, at every temperature."""
        return [
            SweepPoint(
                profile=profile,
                rtt_ms=rtt_ms,
                temperature=temperature,
                seed=self.seed,
                max_new_tokens=self.max_new_tokens,
            )
            for temperature in self.temperatures
            for profile in profiles
            for rtt_ms in rtts_ms
        ]


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepPoint:
    """One point of the sweep; its fields are those of a `Scenario`."""

    profile: str
    rtt_ms: float
    temperature: float
    seed: int
    max_new_tokens: int


Tuned = Mapping[tuple[str, SweepPoint], OptionValues]


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedRow:
    """A row to measure: a strategy at a point, and what the row says about it beside."""

    part: str
    point: SweepPoint
    strategy: str
    prompts: int
    choice: OptionValues = field(default_factory=dict)
    scenario: Mapping[str, Any] = field(default_factory=dict)
    labels: Mapping[str, Any] = field(default_factory=dict)

    @property
    def cell(self) -> Cell:
        return Cell(
            strategy=self.strategy,
            choice=self.choice,
            scenario=asdict(self.point) | dict(self.scenario),
            prompts=Prompts(count=self.prompts),
        )


def run(options: RttOptions, *, say: Say) -> JsonRow:
    """Tune every rival for each point, then measure everybody; the result (docs/benchmarks.md)."""
    plans = list(planned(options, _tuned(options, say)))
    say(f"{len(plans)} cells to measure")
    results = in_processes(run_cell, [plan.cell for plan in plans], processes=options.processes, say=say)
    measured = list(zip(plans, results, strict=True))
    plain = [(plan, result) for plan, result in measured if plan.strategy == PLAIN.name]
    rows = []
    for plan, result in measured:
        # Plain decoding at the same point, of at least as many prompts.
        beside = next(r for p, r in plain if p.point == plan.point and p.prompts >= plan.prompts)
        rows.append(row_of(plan, result, beside))
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
    middle = options.main_rtt_ms
    below = sorted((rtt_ms for rtt_ms in options.rtts_ms if rtt_ms < middle), reverse=True)
    above = sorted(rtt_ms for rtt_ms in options.rtts_ms if rtt_ms > middle)
    jobs = []
    for name in (*options.rivals, *options.with_more):
        for temperature in options.temperatures:
            own = replace(options, temperatures=(temperature,))
            [first] = own.points([options.profile], [middle])
            branches = [own.points([options.profile], below), own.points([options.profile], above)]
            branches += [own.points([profile], [middle]) for profile in options.side_profiles]
            jobs.append((name, first, branches))
    searches = [
        Search(
            strategy=name,
            first=asdict(first),
            branches=tuple(tuple(map(asdict, branch)) for branch in branches),
            prompts=options.tuning_prompts,
            tokens=options.tuning_tokens,
            trials=options.trials,
        )
        for name, first, branches in jobs
    ]
    found = in_processes(tune, searches, processes=options.processes, say=say)
    return {
        (name, point): choice
        for (name, first, branches), choices in zip(jobs, found, strict=True)
        for point, choice in zip([first, *chain(*branches)], choices, strict=True)
    }


def planned(options: RttOptions, tuned: Tuned) -> Iterator[PlannedRow]:
    """The sweep, other machines, free pacing with prompt lookup in the verifier, and the parts of ours."""
    sweep, few = options.points([options.profile], options.rtts_ms), min(options.side_prompts, options.prompts)
    sides = options.points(options.side_profiles, [options.main_rtt_ms])
    for part, points, prompts in (("sweep", sweep, options.prompts), ("profile", sides, few)):
        for point in points:
            for name in (PLAIN.name, OURS.name, *options.rivals):
                choice = tuned.get((name, point), {})
                yield PlannedRow(part=part, point=point, strategy=name, prompts=prompts, choice=choice)
            for name in options.with_more if part == "sweep" and point.rtt_ms in options.focus_rtts_ms else ():
                choice = tuned[name, point]
                yield PlannedRow(part="more", point=point, strategy=name, prompts=prompts, choice=choice)
    free = [name for name in options.rivals if not entrant(name).kind.is_stepped]
    for point in sweep:
        for name in (OURS.name, *free):
            # As it is shipped to do; elsewhere a drafter looks up the text.
            choice = {**tuned.get((name, point), {}), "policy": LOOKS_UP}
            yield PlannedRow(part="own lookup", point=point, strategy=name, prompts=options.prompts, choice=choice)
    focus = [rtt_ms for rtt_ms in options.focus_rtts_ms if rtt_ms in options.rtts_ms]
    for point in options.points([options.profile], focus):
        yield from _parts(point, few)


def _parts(point: SweepPoint, prompts: int) -> Iterator[PlannedRow]:
    """The ablation, and the bounds that know the stream."""
    for variant in variants():
        yield PlannedRow(
            part="ablation",
            point=point,
            strategy=OURS.name,
            prompts=prompts,
            choice=variant.choice,
            labels={"order": variant.order, "label": variant.label},
        )
    for label, scenario in BOUNDS.items():
        yield PlannedRow(
            part="oracle",
            point=point,
            strategy=ORACLE.name if scenario else OURS.name,
            prompts=prompts,
            scenario=scenario,
            labels={"label": label},
        )


def row_of(plan: PlannedRow, result: CellResult, plain: CellResult) -> JsonRow:
    """A row, with `plain` the plain decoding of the same prompts, and perhaps of more, at the same point."""
    kind = entrant(plan.strategy).kind
    ratios = [plain.seconds[number] / seconds for number, seconds in result.seconds.items()]
    return {
        "part": plan.part,
        **plan.labels,
        "strategy": plan.strategy,
        "profile": plan.point.profile,
        "rtt_ms": plan.point.rtt_ms,
        "temperature": plan.point.temperature,
        "verifiers": kind.verifiers,
        "speedup": sum(plain.seconds[number] for number in result.seconds) / result.total_s,
        "worst_prompt_speedup": min(ratios),
        "options": {name: value for name, value in plan.choice.items() if name not in ("law", "policy")},
        "law": plan.choice.get("law", COUPLED),
        "policy": "as the strategy asks" if kind.is_stepped else plan.choice.get("policy", "ours"),
        "accepted_tokens_per_round": result.accepted_per_round,
        "gpu_seconds_per_token": result.report.seconds_per_token,
        "bytes_per_token": result.report.bytes_per_token,
        "prompts": len(result.seconds),
        "seconds": result.total_s,
        **result.checks,
    }
