"""Every strategy against the round-trip time: one request at a time, equal machines, rivals tuned for each cell."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Final

from cosine_node.bench.ablation import variants
from cosine_node.bench.entrants import COUPLED, DSI_2, LOOKS_UP, OURS, PLAIN, RIVALS, OptionValues, entrant
from cosine_node.bench.experiment import (
    RECORDED_TOKENS,
    TUNE_SPLIT,
    Cell,
    CellResult,
    ExperimentOptions,
    JsonRow,
    Prompts,
    Say,
    in_processes,
    result_of,
    run_cell,
)
from cosine_node.bench.rtt_findings import findings_of
from cosine_node.bench.tuning import Search, TuningPoint, tune
from cosine_node.simulation.devices import deploy
from cosine_node.simulation.scenario import DECISION_S, curves

SHOWN_TOKENS: Final = (1, 4, 8, 16, 32)
"""A choice: the pass lengths whose emulated time the setup names, the corners of the emulated curve."""
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
            choice=dict(self.choice),
            scenario=asdict(self.point) | dict(self.scenario),
            prompts=Prompts(count=self.prompts),
        )


def run(options: RttOptions, *, say: Say) -> JsonRow:
    """Tune every rival for each point, then measure everybody; one JSON object (docs/benchmarks.md)."""
    tuned = _tuned(options, say)
    planned = [*_sweep(options, tuned), *_sides(options, tuned), *_own_lookup(options, tuned), *_parts(options)]
    say(f"{len(planned)} cells to measure")
    results = in_processes(run_cell, [plan.cell for plan in planned], processes=options.processes, say=say)
    measured = list(zip(planned, results, strict=True))
    plain = [(plan, result) for plan, result in measured if plan.strategy == PLAIN.name]
    rows = []
    for plan, result in measured:
        # Plain decoding at the same point, of at least as many prompts.
        beside = next(r for p, r in plain if p.point == plan.point and p.prompts >= plan.prompts)
        rows.append(row_of(plan, result, beside))
    return result_of(
        name="rtt",
        what="How many times as fast as plain decoding each strategy is, by the round-trip time between any two "
        "machines, for one request at a time.",
        setup=_setup(options),
        rows=rows,
        findings=findings_of(rows, main_rtt_ms=options.main_rtt_ms),
    )


def _point(options: RttOptions, profile: str, rtt_ms: float, temperature: float) -> SweepPoint:
    return SweepPoint(
        profile=profile,
        rtt_ms=rtt_ms,
        temperature=temperature,
        seed=options.seed,
        max_new_tokens=options.max_new_tokens,
    )


def _points(options: RttOptions, places: Iterable[tuple[str, float]]) -> Iterator[SweepPoint]:
    """The points of profiles with a round-trip time, at every temperature."""
    for temperature in options.temperatures:
        for profile, rtt_ms in places:
            yield _point(options, profile, rtt_ms, temperature)


def _tuning_points(options: RttOptions, temperature: float) -> list[tuple[SweepPoint, int | None]]:
    """From the middle of the sweep outwards, each point with the index of the one it starts from."""
    middle = options.main_rtt_ms
    below = sorted((rtt for rtt in options.rtts_ms if rtt < middle), reverse=True)
    above = sorted(rtt for rtt in options.rtts_ms if rtt > middle)
    steps: list[tuple[str, float, int | None]] = [(options.profile, middle, None)]
    for branch in (below, above):
        steps += [
            (options.profile, rtt, len(steps) + index - 1 if index else 0) for index, rtt in enumerate(branch)
        ]
    steps += [(profile, middle, 0) for profile in options.side_profiles]
    return [(_point(options, profile, rtt, temperature), after) for profile, rtt, after in steps]


def _tuned(options: RttOptions, say: Say) -> Tuned:
    """The best option values of every rival at every point."""
    jobs = [
        (name, _tuning_points(options, temperature))
        for name in (*options.rivals, *options.with_more)
        for temperature in options.temperatures
    ]
    searches = [
        Search(
            strategy=name,
            points=tuple(TuningPoint(scenario=asdict(point), after=after) for point, after in points),
            prompts=options.tuning_prompts,
            tokens=options.tuning_tokens,
            trials=options.trials,
        )
        for name, points in jobs
    ]
    found = in_processes(tune, searches, processes=options.processes, say=say)
    return {
        (name, point): choice
        for (name, points), choices in zip(jobs, found, strict=True)
        for (point, _), choice in zip(points, choices, strict=True)
    }


def _everybody(
    part: str, point: SweepPoint, rivals: Sequence[str], tuned: Tuned, prompts: int
) -> Iterator[PlannedRow]:
    """Plain decoding, ours, and rivals with what was tuned for them."""
    for name in (PLAIN.name, OURS.name):
        yield PlannedRow(part=part, point=point, strategy=name, prompts=prompts)
    for name in rivals:
        yield PlannedRow(part=part, point=point, strategy=name, prompts=prompts, choice=tuned[name, point])


def _sweep(options: RttOptions, tuned: Tuned) -> Iterator[PlannedRow]:
    for point in _points(options, [(options.profile, rtt_ms) for rtt_ms in options.rtts_ms]):
        yield from _everybody("sweep", point, options.rivals, tuned, options.prompts)
        for name in options.with_more if point.rtt_ms in options.focus_rtts_ms else ():
            choice = tuned[name, point]
            yield PlannedRow(part="more", point=point, strategy=name, prompts=options.prompts, choice=choice)


def _sides(options: RttOptions, tuned: Tuned) -> Iterator[PlannedRow]:
    prompts = min(options.side_prompts, options.prompts)
    for point in _points(options, [(profile, options.main_rtt_ms) for profile in options.side_profiles]):
        yield from _everybody("profile", point, options.rivals, tuned, prompts)


def _own_lookup(options: RttOptions, tuned: Tuned) -> Iterator[PlannedRow]:
    """Strategies on free pacing where the verifier looks up the text itself, as it is shipped to do."""
    rivals = [name for name in options.rivals if not entrant(name).kind.is_stepped]
    for point in _points(options, [(options.profile, rtt_ms) for rtt_ms in options.rtts_ms]):
        for name in (OURS.name, *rivals):
            choice = {**tuned.get((name, point), {}), "policy": LOOKS_UP}
            yield PlannedRow(part="own lookup", point=point, strategy=name, prompts=options.prompts, choice=choice)


def _parts(options: RttOptions) -> Iterator[PlannedRow]:
    """The ablation, and the bounds that know the stream."""
    prompts = min(options.side_prompts, options.prompts)
    measured = [rtt_ms for rtt_ms in options.focus_rtts_ms if rtt_ms in options.rtts_ms]
    for point in _points(options, [(options.profile, rtt_ms) for rtt_ms in measured]):
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
            strategy = OURS.name if label == "ours" else "oracle"
            yield PlannedRow(
                part="oracle",
                point=point,
                strategy=strategy,
                prompts=prompts,
                scenario=scenario,
                labels={"label": label},
            )


def row_of(plan: PlannedRow, result: CellResult, plain: CellResult) -> JsonRow:
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


def _setup(options: RttOptions) -> JsonRow:
    """Every emulated figure by name, and what was tuned on what."""
    return {
        "emulated_pass_ms": {
            profile: emulated_passes_ms(profile, SHOWN_TOKENS)
            for profile in (options.profile, *options.side_profiles)
        },
        "emulated_devices": {profile: _devices(profile) for profile in options.side_profiles if ":" in profile},
        "emulated_rtt_ms": list(options.rtts_ms),
        "emulated_client_decision_ms": 1e3 * DECISION_S,
        "rtt": "between every pair of machines, so a draft relayed by the client waits two one-way delays",
        "verifiers": 1,
        "drafters": "one of the embedded family for each of five domains, a general one, one that copies the text",
        "traces": "the split test, recorded from the embedded models",
        "prompts": options.prompts,
        "max_new_tokens": options.max_new_tokens,
        "side_prompts": options.side_prompts,
        "tuning": {
            "split": TUNE_SPLIT,
            "prompts": options.tuning_prompts,
            "tokens_of_each": options.tuning_tokens,
            "trials_per_point": options.trials,
            "options": {name: {k: list(v) for k, v in entrant(name).grid.items()} for name in options.rivals},
        },
    }


def emulated_passes_ms(profile: str, tokens: Sequence[int]) -> dict[str, dict[str, float]]:
    """Milliseconds of a pass of so many tokens on the machines of a profile."""
    return {
        role: {str(count): round(1e3 * curve.seconds(count), 3) for count in tokens}
        for role, curve in zip(("verifier", "drafter"), curves(profile), strict=True)
    }


def _devices(profile: str) -> str:
    """The cards and the precision of the models on them."""
    names = []
    for place in profile.split("/"):
        count, _, rest = place.partition("x")
        cards, named = (int(count), rest) if count.isdecimal() else (1, place)
        device, _, model = named.partition(":")
        names.append(deploy(device, model, count=cards).name)
    return ", ".join(names)
