"""Every strategy against the round-trip time: one request at a time, equal machines, rivals tuned for each cell.

`cosine` runs with its default options: the verifier copies from the text, coordinates where that pays, and holds
its own drafter. Rivals run as published. One on free pacing is also measured with that drafter and the copying; one
of rounds, which needs its answers at once, also at the verifier, where the distance adds as much as to plain
decoding.

On texts of the real family `cosine` is compared with ways that need no network, copying and a drafter at the
verifier: the shortest loop is the strongest objection to ours, and does not depend on the client's distance (arXiv
2606.25091).
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from statistics import fmean
from typing import Any, Final

from cosine_engine.zoo.family import Family
from cosine_lab.experiments.entrants import (
    COUPLED,
    GENERALIST,
    OURS,
    PLAIN,
    RIVALS,
    SHIPPED,
    SHIPS,
    OptionValues,
    entrant,
)
from cosine_lab.experiments.experiment import (
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
    sum_of_checks,
)
from cosine_lab.experiments.tuning import Search, TuningPlace, tune
from cosine_lab.report.intervals import ratio_and_interval, speedup_fields
from cosine_lab.report.plots import LinePlot, Row, Rows, rows_where

REMOTE: Final = "cosine, no drafter at the verifier"
ALONE: Final = "a drafter at the verifier, nobody else"
COPYING: Final = "the verifier copies, nobody else"
EQUIPPED: Final = ", the same drafter and copying at the verifier"
BESIDE: Final = ", beside the verifier"
"""Labels of rows, the last two after the name of a rival."""
PLACE: Final = ("profile", "temperature", "rtt_ms")
"""The fields that name a point of the sweep."""
REAL: Final = "real text"
"""The part of the rows on texts of the real family."""
BASELINE: Final = "speculative"
"""Synchronous speculative decoding, the best known rival."""
WAYS: Final[Mapping[str, Mapping[str, Any]]] = {
    OURS.name: SHIPPED,
    REMOTE: {**SHIPPED, "home": ""},
    ALONE: {**SHIPPED, "max_drafters": 0},
}
"""Rows of `cosine` with the default verifier, by label with their fields of `Scenario`."""
BESIDE_IT: Final[Mapping[str, Mapping[str, Any]]] = {**WAYS, COPYING: {**WAYS[ALONE], "home": ""}}
"""The same on real text, with the other way that needs no network."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RttOptions(ExperimentOptions):
    """The sweep. `profile` and `side_profiles` as in `Scenario`; the latter are run only at `main_rtt_ms`.

    The sweep runs `prompts` prompts of each temperature, other parts at most `side_prompts`. Strategies that learn
    from one request for the next run them in `orders` orders there, and each prompt counts by its mean.
    `side_rivals` are measured on the side profiles. `real_prompts` texts of the real family are measured on
    `real_profiles` at `real_rtts_ms`, against the ways at the verifier alone. `tuning_prompts`, `tuning_tokens` and
    `trials` are those of `Search`.
    """

    rtts_ms: tuple[float, ...] = (0.0, 5.0, 20.0, 50.0, 100.0, 200.0, 300.0)
    main_rtt_ms: float = 20.0
    temperatures: tuple[float, ...] = (0.0, 0.8)
    profile: str = "60/6"
    side_profiles: tuple[str, ...] = ("25/8", "a100-80gb:70B/rtx-4090:1B")
    side_rivals: tuple[str, ...] = ("specinfer", "pipeinfer")
    rivals: tuple[str, ...] = tuple(rival.name for rival in RIVALS)
    prompts: int = 24
    orders: int = 3
    side_prompts: int = 10
    real_profiles: tuple[str, ...] = ("a100-80gb:70B/rtx-4090:1B", "60/6")
    real_rtts_ms: tuple[float, ...] = (0.0, 20.0, 50.0, 100.0, 300.0)
    real_prompts: int = 20
    max_new_tokens: int = RECORDED_TOKENS
    tuning_prompts: int = 4
    tuning_tokens: int = 64
    trials: int = 12

    @classmethod
    def quick(cls) -> "RttOptions":
        return cls(
            rtts_ms=(20.0,),
            temperatures=(0.0,),
            side_profiles=(),
            side_rivals=(),
            rivals=("speculative",),
            prompts=2,
            orders=2,
            side_prompts=1,
            real_profiles=(),
            max_new_tokens=24,
            tuning_prompts=1,
            tuning_tokens=8,
            trials=0,
        )

    def places(self, profiles: Sequence[str], rtts_ms: Sequence[float]) -> list[TuningPlace]:
        """Return points of the sweep, or outside it, at every temperature."""
        return [
            TuningPlace(profile, rtt_ms, temperature)
            for temperature, profile, rtt_ms in product(self.temperatures, profiles, rtts_ms)
        ]

    def prompts_at(self, place: TuningPlace) -> int:
        """Return the prompts that all strategies run at a point."""
        return self.prompts if place.profile == self.profile else min(self.side_prompts, self.prompts)

    def cell(
        self, strategy: str, place: TuningPlace, choice: OptionValues, *, family: Family = Family.TOY, **more: Any
    ) -> Cell:
        """Return the cell of a strategy at a point, on a family's texts; `more` are fields of its scenario."""
        scenario = {**place._asdict(), "seed": self.seed, "max_new_tokens": self.max_new_tokens, **more}
        count = self.prompts_at(place) if family is Family.TOY else self.real_prompts
        return Cell(
            strategy=strategy, choice=choice, scenario=scenario, prompts=Prompts(count=count, family=family)
        )


Tuned = Mapping[tuple[str, TuningPlace], OptionValues]
"""Option values of a strategy by its name, for each point."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedRow:
    """A row to measure, with its label.

    Its cell is run with the prompts in `orders` orders. With `is_beside` it has no distance, and the time that
    distance adds to plain decoding is added to its times.
    """

    part: str
    label: str
    place: TuningPlace
    cell: Cell
    is_beside: bool = False
    orders: int = 1

    @property
    def family(self) -> Family:
        """The family of its texts."""
        return self.cell.prompts.family

    @property
    def cells(self) -> list[Cell]:
        """The cell for each order of its prompts."""
        prompts = self.cell.prompts
        return [replace(self.cell, prompts=replace(prompts, order=order)) for order in range(self.orders)]


def run(options: RttOptions, *, say: Say) -> JsonRow:
    """Tune every rival for each point, measure all, and return the result (docs/benchmarks.md)."""
    plans = list(planned(options, _tuned(options, say)))
    points = dict.fromkeys(
        (plan.family, place) for plan in plans for place in (plan.place, plan.place._replace(rtt_ms=0.0))
    )
    plain = {(family, place): options.cell(PLAIN.name, place, {}, family=family) for family, place in points}
    # Cells of several rows are measured once.
    cells = {repr(cell): cell for cell in (*plain.values(), *(cell for plan in plans for cell in plan.cells))}
    say(f"{len(cells)} cells to measure")
    results = in_processes(run_cell, list(cells.values()), processes=options.processes, say=say)
    measured = dict(zip(cells, results, strict=True))
    plain_s = {point: measured[repr(cell)].seconds for point, cell in plain.items()}
    rows = [
        row_of(plan, [measured[repr(cell)] for cell in plan.cells], plain_s, seed=options.seed) for plan in plans
    ]
    return {
        "what": "How many times as fast as plain decoding each strategy is, by the round-trip time between any two "
        "machines, for one request at a time.",
        "setup": {
            **setup_of(options),
            **emulated(
                dict.fromkeys([options.profile, *options.side_profiles, *options.real_profiles]),
                sorted({*options.rtts_ms, *options.real_rtts_ms}),
            ),
            "rtt": "between every pair of machines, so a draft relayed by the client waits two one-way delays",
            "drafters": "one of the embedded family for each of five domains, a general one, one that copies text",
            "drafter_at_the_verifier": f"the {GENERALIST} one, on a device like the drafters'",
            "intervals": "95 %, by bootstrap over the prompts, each by its mean over their orders",
            "tuned_over": {name: entrant(name).grid for name in options.rivals},
        },
        "rows": rows,
        "findings": findings_of(rows, main_rtt_ms=options.main_rtt_ms, seed=options.seed),
    }


def _tuned(options: RttOptions, say: Say) -> Tuned:
    """Return the best option values of every rival at every point, from the middle of the sweep outwards."""
    searches = [
        Search(
            strategy=name,
            seed=options.seed,
            first=TuningPlace(options.profile, options.main_rtt_ms, temperature),
            branches=tuple(_branches(options, name, temperature)),
            prompts=options.tuning_prompts,
            tokens=options.tuning_tokens,
            trials=options.trials,
        )
        for name, temperature in product(options.rivals, options.temperatures)
    ]
    found = in_processes(tune, searches, processes=options.processes, say=say)
    return {
        (search.strategy, place): choice
        for search, choices in zip(searches, found, strict=True)
        for place, choice in choices.items()
    }


def _branches(options: RttOptions, name: str, temperature: float) -> Iterator[tuple[TuningPlace, ...]]:
    """Return the points at which a rival is tuned, away from the middle; one of rounds also without distance."""
    middle = options.main_rtt_ms
    swept = sorted(options.rtts_ms)
    rounds = [0.0] if entrant(name).is_stepped else []
    nearer = [rtt_ms for rtt_ms in reversed(swept) if rtt_ms < middle]
    routes = [
        (options.profile, list(dict.fromkeys([*nearer, *rounds]))),
        (options.profile, [rtt_ms for rtt_ms in swept if rtt_ms > middle]),
        *((profile, [middle, *rounds]) for profile in options.side_profiles if name in options.side_rivals),
    ]
    for profile, rtts_ms in routes:
        yield tuple(TuningPlace(profile, rtt_ms, temperature) for rtt_ms in rtts_ms)


def planned(options: RttOptions, tuned: Tuned) -> Iterator[PlannedRow]:
    """Return the rows of the sweep, other machines, and real text."""
    for place in options.places([options.profile], options.rtts_ms):
        yield from _compared(options, place, options.rivals, tuned, part="sweep")
    for place in options.places(options.side_profiles, [options.main_rtt_ms]):
        yield from _compared(options, place, options.side_rivals, tuned, part="profile")
    for place in options.places(options.real_profiles, options.real_rtts_ms):
        plain = options.cell(PLAIN.name, place, {}, family=Family.SMOL)
        yield PlannedRow(part=REAL, label=PLAIN.name, place=place, cell=plain)
        for label, scenario in BESIDE_IT.items():
            cell = options.cell(OURS.name, place, {"policy": SHIPS}, family=Family.SMOL, **scenario)
            yield PlannedRow(part=REAL, label=label, place=place, cell=cell)


def _compared(
    options: RttOptions, place: TuningPlace, rivals: Sequence[str], tuned: Tuned, *, part: str
) -> Iterator[PlannedRow]:
    """Return the rows of one point: plain decoding, `cosine` by default, rivals as published and at their best."""
    orders = options.orders if part == "sweep" else 1
    yield PlannedRow(part=part, label=PLAIN.name, place=place, cell=options.cell(PLAIN.name, place, {}))
    for label, scenario in WAYS.items():
        cell = options.cell(OURS.name, place, {"policy": SHIPS}, **scenario)
        yield PlannedRow(part=part, label=label, place=place, cell=cell, orders=orders)
    for name in rivals:
        choice = tuned[name, place]
        yield PlannedRow(part=part, label=name, place=place, cell=options.cell(name, place, choice))
        if is_stepped := entrant(name).is_stepped:
            near = place._replace(rtt_ms=0.0)
            # A program at the verifier has no writes to send.
            cell = options.cell(name, near, tuned[name, near], decision_s=0.0)
        else:
            cell = options.cell(name, place, {**choice, "policy": SHIPS}, home=GENERALIST)
        yield PlannedRow(
            part=part,
            label=name + (BESIDE if is_stepped else EQUIPPED),
            place=place,
            cell=cell,
            is_beside=is_stepped,
            orders=1 if is_stepped else orders,
        )


def row_of(
    plan: PlannedRow,
    results: Sequence[CellResult],
    plain_s: Mapping[tuple[Family, TuningPlace], Mapping[int, float]],
    *,
    seed: int,
) -> JsonRow:
    """Return a row of the results of all orders of the prompts, the first of which is their reported order.

    `plain_s` holds the seconds of plain decoding by prompt, of the row's texts, at its point and without distance.
    """
    plays, choice = entrant(plan.cell.strategy), plan.cell.choice
    plain = plain_s[plan.family, plan.place]
    near = plain_s[plan.family, plan.place._replace(rtt_ms=0.0)]
    further_s = {number: plain[number] - near[number] if plan.is_beside else 0.0 for number in results[0].seconds}
    seconds = {number: more_s + fmean(r.seconds[number] for r in results) for number, more_s in further_s.items()}
    plain_total_s = sum(plain[number] for number in seconds)
    return {
        "part": plan.part,
        "family": plan.family.value,
        "strategy": plan.label,
        **plan.place._asdict(),
        **speedup_fields(seconds, plain, seed=seed),
        "speedup_by_order": [plain_total_s / (sum(further_s.values()) + result.total_s) for result in results],
        "options": {name: value for name, value in choice.items() if name not in ("law", "policy")},
        "law": choice.get("law", COUPLED),
        "policy": "as the strategy asks" if plays.is_stepped else choice.get("policy", "ours"),
        "drafter_at_the_verifier": plan.cell.scenario.get("home", ""),
        "accepted_tokens_per_round": fmean(result.accepted_per_round for result in results),
        "gpu_seconds_per_token": fmean(result.report.seconds_per_token for result in results),
        "bytes_per_token": fmean(result.report.bytes_per_token for result in results),
        "prompts": len(seconds),
        "prompt_s": list(seconds.values()),
        **sum_of_checks([result.checks for result in results]),
        "tokens": sum(result.report.tokens for result in results),
    }


def findings_of(rows: Sequence[JsonRow], *, main_rtt_ms: float, seed: int) -> JsonRow:
    """Return the floor against plain decoding, and the distance to the best other everywhere."""

    def part(name: str) -> list[JsonRow]:
        return [row for row in rows if row["part"] == name]

    sweep = part("sweep")
    ours = [row for row in sweep if row["strategy"] == OURS.name]
    lowest = min(ours, key=lambda row: row["speedup"])
    against = list(_against_best(sweep, seed=seed))
    real = list(_against_best(part(REAL), seed=seed))
    return {
        "lowest_speedup": {name: lowest[name] for name in (*PLACE, "speedup", "interval")},
        "worst_prompt_speedup": min(row["worst_prompt_speedup"] for row in ours),
        "against_best_other": against,
        "closest": min(against, key=lambda row: row["ratio"]),
        "points": len(against),
        "points_ahead": sum(row["ratio"] > 1.0 for row in against),
        "at_main_rtt": [row for row in against if row["rtt_ms"] == main_rtt_ms],
        "at_other_profiles": list(_against_best(part("profile"), seed=seed)),
        "on_real_text": real,
        "closest_on_real_text": min(real, key=lambda row: row["ratio"], default=None),
        "lowest_speedup_on_real_text": min((row["speedup"] for row in real), default=None),
        **sum_of_checks(rows),
        "tokens": sum(row["tokens"] for row in rows),
    }


def _against_best(rows: Sequence[JsonRow], *, seed: int) -> Iterator[JsonRow]:
    """Compare ours with the best other, and tuned speculative decoding, at every point, by ratios of total time."""
    for place, together in grouped(rows, *PLACE).items():
        by_strategy = {row["strategy"]: row for row in together if row["strategy"] != REMOTE}
        ours = by_strategy.pop(OURS.name)
        best = max(by_strategy.values(), key=lambda row: float(row["speedup"]))
        baseline = by_strategy.get(BASELINE)
        yield {
            **dict(zip(PLACE, place, strict=True)),
            "speedup": ours["speedup"],
            "best_other": best["strategy"],
            "best_other_speedup": best["speedup"],
            **ratio_and_interval(best["prompt_s"], ours["prompt_s"], seed=seed),
            "ratio_to_speculative": ours["speedup"] / baseline["speedup"] if baseline else None,
        }


def at_their_best(result: Row) -> Rows:
    """Return the rows of the sweep twice: with rivals as strong as possible, and with rivals as published."""
    sweep = [row for row in result["rows"] if row["part"] == "sweep" and row["strategy"] != REMOTE]
    strongest = [row for row in sweep if row["strategy"] == ALONE or row["strategy"].endswith((EQUIPPED, BESIDE))]
    named = {"plain", "cosine"}
    return [
        {**row, "rivals": told}
        for told, rivals in (
            ("rivals at their best", strongest),
            ("rivals as published", [row for row in sweep if row not in strongest]),
        )
        for row in sweep
        if row in rivals or row["strategy"] in named
    ]


FIGURES: Final = (
    LinePlot(
        "rtt",
        at_their_best,
        "{profile}, T {temperature}, {rivals}",
        "{strategy}",
        "rtt_ms",
        "speedup",
        band="interval",
    ),
    LinePlot(
        "near",
        rows_where(part=REAL),
        "{profile}, T {temperature}",
        "{strategy}",
        "rtt_ms",
        "speedup",
        band="interval",
    ),
)
