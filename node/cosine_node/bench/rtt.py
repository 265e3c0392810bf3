"""Every strategy against the round-trip time: one request at a time, equal machines, rivals tuned for each cell."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Final

from cosine_node.bench.ablation import Variant, variants
from cosine_node.bench.cells import RECORDED_TOKENS, Cell, CellResult, Say, all_processors, in_processes, run_cells
from cosine_node.bench.entrants import COUPLED, LOOKS_UP, RIVALS, WITH_MORE, Choice, entrant
from cosine_node.bench.rtt_findings import findings_of
from cosine_node.bench.tuning import Point, Search, tune
from cosine_node.simulation.devices import deploy
from cosine_node.simulation.scenario import DECISION_S, curves

NAME: Final = "rtt"
SHOWN_TOKENS: Final = (1, 4, 8, 16, 32)
STEPPED: Final = "as the strategy asks"


@dataclass(frozen=True, slots=True, kw_only=True)
class RttOptions:
    """What to sweep. `profile` and `side_profiles` as in `Scenario`; the latter are run at `main_rtt_ms` alone.

    The sweep runs `prompts` prompts of each temperature, everything beside it at most `side_prompts`. The parts of
    cosine and the bounds on it are measured at those of `focus_rtts_ms` that are swept. `tuning_prompts`,
    `tuning_tokens` and `trials` are those of `Search`.
    """

    seed: int = 0
    processes: int = field(default_factory=all_processors)
    rtts_ms: tuple[float, ...] = (0.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 300.0)
    main_rtt_ms: float = 20.0
    focus_rtts_ms: tuple[float, ...] = (20.0, 100.0)
    temperatures: tuple[float, ...] = (0.0, 0.8)
    profile: str = "60/6"
    side_profiles: tuple[str, ...] = ("25/8", "40/3", "a100-80gb:70B/rtx-4090:1B")
    rivals: tuple[str, ...] = tuple(rival.name for rival in RIVALS)
    with_more: tuple[str, ...] = tuple(rival.name for rival in WITH_MORE)
    has_ablation: bool = True
    prompts: int = 80
    side_prompts: int = 30
    max_new_tokens: int = RECORDED_TOKENS
    tuning_prompts: int = 6
    tuning_tokens: int = 64
    trials: int = 3

    @classmethod
    def quick(cls) -> "RttOptions":
        """The smallest form, for tests and a look."""
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
class Place:
    """One point of the sweep."""

    profile: str
    rtt_ms: float
    temperature: float
    seed: int = 0
    max_new_tokens: int = RECORDED_TOKENS

    @property
    def scenario(self) -> dict[str, Any]:
        """The fields of a `Scenario`."""
        return asdict(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """A cell with what its row says about it."""

    part: str
    place: Place
    cell: Cell
    labels: Mapping[str, Any] = field(default_factory=dict)


def run(options: RttOptions, *, say: Say) -> dict[str, object]:
    """Tune every rival for each point, then measure everybody; one JSON object (docs/benchmarks.md)."""
    tuned = _tuned(options, say)
    skipped = [variant for variant in variants() if variant.skipped] if options.has_ablation else []
    planned = [*_sweep(options, tuned), *_sides(options, tuned), *_looking_up(options, tuned)]
    if options.has_ablation:
        planned += _parts_of_ours(options)
    say(f"{len(planned)} cells to measure")
    results = run_cells([plan.cell for plan in planned], processes=options.processes, say=say)
    plain = {
        (plan.place, plan.cell.prompts): result
        for plan, result in zip(planned, results, strict=True)
        if plan.cell.strategy == "plain"
    }
    rows = [_row(plan, result, _same(plain, plan)) for plan, result in zip(planned, results, strict=True)]
    return {
        "name": NAME,
        "what": "How many times as fast as plain decoding each strategy is, by the round-trip time between any two "
        "machines, for one request at a time.",
        "command": f"cosine-node bench {NAME}",
        "setup": _setup(options),
        "rows": rows,
        "skipped": [{"order": v.order, "label": v.label, "reason": v.skipped} for v in skipped],
        "findings": findings_of(rows, main_rtt_ms=options.main_rtt_ms),
    }


def _same(plain: Mapping[tuple[Place, int], CellResult], plan: Planned) -> CellResult:
    """Plain decoding at the same place, of at least as many prompts."""
    return next(r for (place, n), r in plain.items() if place == plan.place and n >= plan.cell.prompts)


def _places(options: RttOptions, temperature: float) -> list[tuple[Place, int | None]]:
    """Where to tune at a temperature, from the middle outwards, each with the index of the place it starts from."""
    middle = options.main_rtt_ms
    below = sorted((rtt for rtt in options.rtts_ms if rtt < middle), reverse=True)
    above = sorted(rtt for rtt in options.rtts_ms if rtt > middle)
    steps: list[tuple[str, float, int | None]] = [(options.profile, middle, None)]
    for branch in (below, above):
        steps += [
            (options.profile, rtt, len(steps) + index - 1 if index else 0) for index, rtt in enumerate(branch)
        ]
    steps += [(profile, middle, 0) for profile in options.side_profiles]
    return [(_place(options, profile, rtt, temperature), after) for profile, rtt, after in steps]


def _place(options: RttOptions, profile: str, rtt_ms: float, temperature: float) -> Place:
    return Place(
        profile=profile,
        rtt_ms=rtt_ms,
        temperature=temperature,
        seed=options.seed,
        max_new_tokens=options.max_new_tokens,
    )


def _tuned(options: RttOptions, say: Say) -> dict[tuple[str, Place], Choice]:
    """The best choice of every rival at every place."""
    jobs = [
        (name, temperature, _places(options, temperature))
        for name in (*options.rivals, *options.with_more)
        for temperature in options.temperatures
    ]
    searches = [
        Search(
            strategy=name,
            points=tuple(Point(scenario=place.scenario, after=after) for place, after in places),
            prompts=options.tuning_prompts,
            tokens=options.tuning_tokens,
            trials=options.trials,
        )
        for name, _, places in jobs
    ]
    found = in_processes(tune, searches, processes=options.processes, say=say)
    return {
        (name, place): choice
        for (name, _, places), choices in zip(jobs, found, strict=True)
        for (place, _), choice in zip(places, choices, strict=True)
    }


def _at(options: RttOptions, places: Iterable[tuple[str, float]]) -> Iterator[Place]:
    for temperature in options.temperatures:
        for profile, rtt_ms in places:
            yield _place(options, profile, rtt_ms, temperature)


def _sweep(options: RttOptions, tuned: Mapping[tuple[str, Place], Choice]) -> list[Planned]:
    planned: list[Planned] = []
    for place in _at(options, [(options.profile, rtt_ms) for rtt_ms in options.rtts_ms]):
        planned += _everybody("sweep", place, options.rivals, tuned, options.prompts)
        if place.rtt_ms in options.focus_rtts_ms:
            planned += _everybody("more", place, options.with_more, tuned, options.prompts)[2:]
    return planned


def _sides(options: RttOptions, tuned: Mapping[tuple[str, Place], Choice]) -> list[Planned]:
    planned: list[Planned] = []
    for place in _at(options, [(profile, options.main_rtt_ms) for profile in options.side_profiles]):
        planned += _everybody("profile", place, options.rivals, tuned, min(options.side_prompts, options.prompts))
    return planned


def _looking_up(options: RttOptions, tuned: Mapping[tuple[str, Place], Choice]) -> list[Planned]:
    """Those that run on free pacing where the verifier copies from the text itself, as it is shipped to do."""
    names = [name for name in options.rivals if not entrant(name).is_stepped]
    planned: list[Planned] = []
    for place in _at(options, [(options.profile, rtt_ms) for rtt_ms in options.rtts_ms]):
        for name, choice in [("cosine", {}), *((name, tuned[name, place]) for name in names)]:
            cell = _cell(name, {**choice, "policy": LOOKS_UP}, place, options.prompts)
            planned.append(Planned(part="own lookup", place=place, cell=cell))
    return planned


def _everybody(
    part: str,
    place: Place,
    rivals: Sequence[str],
    tuned: Mapping[tuple[str, Place], Choice],
    prompts: int,
) -> list[Planned]:
    """Plain decoding, ours, and rivals with what was tuned for them."""
    choices: list[tuple[str, Choice]] = [("plain", {}), ("cosine", {})]
    choices += [(name, tuned[name, place]) for name in rivals]
    return [Planned(part=part, place=place, cell=_cell(name, choice, place, prompts)) for name, choice in choices]


def _parts_of_ours(options: RttOptions) -> list[Planned]:
    """The ablation, and the bounds that know the stream."""
    planned: list[Planned] = []
    prompts = min(options.side_prompts, options.prompts)
    measured = [rtt_ms for rtt_ms in options.focus_rtts_ms if rtt_ms in options.rtts_ms]
    for place in _at(options, [(options.profile, rtt_ms) for rtt_ms in measured]):
        shown = [variant for variant in variants() if not variant.skipped]
        planned += [_varied(variant, place, prompts) for variant in shown]
        for label, more in BOUNDS.items():
            strategy = "cosine" if label == "ours" else "oracle"
            cell = _cell(strategy, {}, place, prompts, more)
            planned.append(Planned(part="oracle", place=place, cell=cell, labels={"label": label}))
    return planned


BOUNDS: Final[Mapping[str, Mapping[str, Any]]] = {
    "ours": {},
    "the coordinator knows": {"decision_s": 0.0},
    "drafters know too": {"decision_s": 0.0, "is_oracle": True},
}


def _varied(variant: Variant, place: Place, prompts: int) -> Planned:
    cell = _cell("cosine", variant.choice, place, prompts)
    labels = {"order": variant.order, "label": variant.label}
    return Planned(part="ablation", place=place, cell=cell, labels=labels)


def _cell(strategy: str, choice: Choice, place: Place, prompts: int, more: Mapping[str, Any] | None = None) -> Cell:
    scenario = {**place.scenario, **(more or {})}
    return Cell(strategy=strategy, choice=dict(choice), scenario=scenario, prompts=prompts)


def _row(plan: Planned, result: CellResult, plain: CellResult) -> dict[str, Any]:
    choice = plan.cell.choice
    plays = entrant(plan.cell.strategy)
    return {
        "part": plan.part,
        **plan.labels,
        "strategy": plan.cell.strategy,
        "profile": plan.place.profile,
        "rtt_ms": plan.place.rtt_ms,
        "temperature": plan.place.temperature,
        "verifiers": plays.verifiers,
        "speedup": result.speedup_over(plain),
        "worst_prompt_speedup": result.worst_over(plain),
        "options": {name: value for name, value in choice.items() if name not in ("law", "policy")},
        "law": choice.get("law", COUPLED),
        "policy": STEPPED if plays.is_stepped else choice.get("policy", "ours"),
        "accepted_tokens_per_round": result.accepted_per_round,
        "gpu_seconds_per_token": result.busy_s_per_token,
        "bytes_per_token": result.bytes_per_token,
        "prompts": len(result.seconds),
        "tokens": result.tokens,
        "seconds": result.total_s,
        "mismatches": result.mismatches,
        "violations": len(result.violations),
    }


def _setup(options: RttOptions) -> dict[str, Any]:
    """Every emulated figure by name, and what was tuned on what."""
    return {
        "emulated_pass_ms": {profile: _passes(profile) for profile in (options.profile, *options.side_profiles)},
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
            "split": "tune",
            "prompts": options.tuning_prompts,
            "tokens_of_each": options.tuning_tokens,
            "trials_per_point": options.trials,
            "options": {name: {k: list(v) for k, v in entrant(name).grid.items()} for name in options.rivals},
        },
    }


def _passes(profile: str) -> dict[str, dict[str, float]]:
    verifier, drafter = curves(profile)
    return {
        role: {str(tokens): round(1e3 * curve.seconds(tokens), 3) for tokens in SHOWN_TOKENS}
        for role, curve in (("verifier", verifier), ("drafter", drafter))
    }


def _devices(profile: str) -> str:
    """The cards and the precision of the models on them."""
    return ", ".join(_deployed(place) for place in profile.split("/"))


def _deployed(place: str) -> str:
    count, _, rest = place.partition("x")
    cards, named = (int(count), rest) if count.isdecimal() else (1, place)
    device, _, model = named.partition(":")
    return deploy(device, model, count=cards).name
