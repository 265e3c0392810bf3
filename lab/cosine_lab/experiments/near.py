"""A drafter beside the verifier against drafters elsewhere: the shortest loop is the strongest objection to ours.

Speculation beside the verifier does not depend on the client's distance (arXiv 2606.25091). It stands here in two
rows: rounds of SpecInfer with a generalist, tuned, in a network without delay; and our own verifier with the same
generalist and nobody else. Then come drafters at the round-trip time, without that generalist at the verifier and
with it. All but the rounds run as they ship: the verifier copies from the text, and finds by trial what pays.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from cosine_lab.emulation.cities import rtt_s
from cosine_lab.experiments.entrants import GENERALIST, OURS, PLAIN, SHIPS, OptionValues
from cosine_lab.experiments.experiment import (
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
    sum_of_checks,
)
from cosine_lab.experiments.rtt import ALONE
from cosine_lab.experiments.tuning import Place, Search, tune
from cosine_lab.report.intervals import speedup_fields
from cosine_lab.report.plots import LinePlot, rows_where
from cosine_lab.simulation.scenario import SCENARIOS
from cosine_node.zoo.family import Family
from cosine_p2p.trust.mandates import Coordination

ROUNDS: Final = "specinfer"
"""The rival beside the verifier."""
SHORT: Final = "short prompts"
LONG_PROMPTS: Final = "prompts over a passage"

COPYING: Final = "the verifier copies"
BESIDE_ROUNDS: Final = "SpecInfer rounds beside the verifier"
REMOTE: Final = "cosine"
BOTH: Final = "cosine, a drafter at the verifier"
WAYS: Final[Mapping[str, Mapping[str, Any]]] = {
    REMOTE: {},
    BOTH: {"home": GENERALIST},
    ALONE: {"home": GENERALIST, "max_drafters": 0},
    COPYING: {"max_drafters": 0},
}
"""Ways that run as they ship, the default first, with their fields of `Scenario`."""
STEADY: Final = "steady"
LINKS: Final[Mapping[str, Mapping[str, Any]]] = {
    STEADY: {},
    "10 ms of jitter": {"jitter_ms": 10.0},
    "1 % of packets lost": {"loss": 0.01},
    "a home's": {name: getattr(SCENARIOS["home"], name) for name in ("jitter_ms", "loss", "rate_bytes_per_s")},
}
"""Links between any two machines, with their fields of `Scenario`; the last is of `cosine-node simulate home`."""
MAPS: Final[Mapping[str, Mapping[str, tuple[str, ...]]]] = {
    f"{client} to {verifier}": {
        "client_cities": (client,),
        "verifier_cities": (verifier,),
        "drafter_cities": tuple(drafters),
    }
    for client, verifier, *drafters in (
        ("frankfurt", "london", "frankfurt", "london", "madrid", "warsaw", "new-york", "tokyo"),
        ("frankfurt", "new-york", "frankfurt", "london", "new-york", "tokyo", "sao-paulo", "sydney"),
        ("sydney", "los-angeles", "sydney", "singapore", "tokyo", "los-angeles", "chicago", "frankfurt"),
    )
}
"""Cities of client and verifier, with fields of `Scenario`: on one continent, on the next, and an ocean apart, the
drafters spread over both and others. Each drafter has one expertise, whatever its city."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NearOptions(ExperimentOptions):
    """The sweep: `prompts` prompts of each family and temperature; `long_prompts` over passages, at `long_rtts_ms`.

    The first family and profile are measured over every kind of link as well, at `link_rtts_ms`, and on `maps`,
    where distances are not equal and the round-trip time of a row is that of client and verifier.

    `tuning_prompts`, `tuning_tokens` and `trials` are those of `Search`, for the rounds.
    """

    families: tuple[str, ...] = (Family.SMOL,)
    profiles: tuple[str, ...] = ("a100-80gb:70B/rtx-4090:1B", "60/6")
    rtts_ms: tuple[float, ...] = (0.0, 20.0, 50.0, 100.0, 300.0)
    temperatures: tuple[float, ...] = (0.0, 0.8)
    prompts: int = 20
    long_prompts: int = 8
    long_rtts_ms: tuple[float, ...] = (20.0, 100.0)
    links: tuple[str, ...] = tuple(LINKS)
    link_rtts_ms: tuple[float, ...] = (60.0,)
    maps: tuple[str, ...] = tuple(MAPS)
    max_new_tokens: int = RECORDED_TOKENS
    tuning_prompts: int = 6
    tuning_tokens: int = 64
    trials: int = 12

    def distances(self, setting: "NearSetting") -> tuple[float, ...]:
        """The round-trip times of client and verifier at which a setting is measured."""
        if setting.link in MAPS:
            [client], [verifier] = (MAPS[setting.link][f"{role}_cities"] for role in ("client", "verifier"))
            return (round(1e3 * rtt_s(client, verifier), 1),)
        if setting.link != STEADY:
            return self.link_rtts_ms
        return self.long_rtts_ms if setting.is_long else self.rtts_ms

    @classmethod
    def quick(cls) -> "NearOptions":
        return cls(
            families=(Family.TOY,),
            profiles=("60/6",),
            rtts_ms=(100.0,),
            temperatures=(0.8,),
            prompts=2,
            long_prompts=0,
            links=(STEADY,),
            maps=(),
            max_new_tokens=24,
            tuning_prompts=1,
            tuning_tokens=8,
            trials=0,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class NearSetting:
    """Requests of one kind on one kind of machines and links."""

    family: Family
    profile: str
    temperature: float
    is_long: bool = False
    link: str = STEADY

    @property
    def fields(self) -> JsonRow:
        """The fields of a row that say so."""
        return {
            "family": self.family.value,
            "prompts_are": LONG_PROMPTS if self.is_long else SHORT,
            "profile": self.profile,
            "temperature": self.temperature,
            "link": self.link,
        }


class PlannedCell(NamedTuple):
    """What a row measures."""

    setting: NearSetting
    way: str
    rtt_ms: float
    cell: Cell


def run(options: NearOptions, *, say: Say) -> JsonRow:
    """Tune the rounds, measure every way; the result (docs/benchmarks.md)."""
    settings = settings_of(options)
    searches = [search_of(options, s) for s in settings if not s.is_long and s.link == STEADY]
    found = in_processes(tune, searches, processes=options.processes, say=say)
    tuned = {
        (search.family, search.first.profile, search.first.temperature): choices[search.first]
        for search, choices in zip(searches, found, strict=True)
    }
    plans = [plan for setting in settings for plan in planned(options, setting, tuned)]
    say(f"{len(plans)} cells to measure")
    results = in_processes(run_cell, [plan.cell for plan in plans], processes=options.processes, say=say)
    measured = {plan[:3]: (plan, result) for plan, result in zip(plans, results, strict=True)}
    rows = rows_of(options, measured)
    return {
        "what": "How many times as fast as plain decoding one request is with a drafter at the verifier, with "
        "drafters elsewhere, and with both, by the round-trip time between machines.",
        "setup": {
            **setup_of(options),
            **emulated(options.profiles, options.rtts_ms),
            "drafter_at_the_verifier": f"the {GENERALIST} one of the family, on a device like the drafters'",
            "drafters": "one of the family for each of its domains, a general one, one that copies text",
            "cities": {name: MAPS[name] for name in options.maps},
            "intervals": "95 %, by bootstrap over the prompts",
        },
        "rows": rows,
        "findings": findings_of(rows),
    }


def settings_of(options: NearOptions) -> list[NearSetting]:
    """All settings, the real family's long prompts and other links last."""
    kinds = list(product(options.families, options.profiles, options.temperatures))
    short = [NearSetting(family=Family(name), profile=profile, temperature=t) for name, profile, t in kinds]
    long = [
        NearSetting(family=Family.SMOL, profile=profile, temperature=t, is_long=True)
        for name, profile, t in kinds
        if name == Family.SMOL and options.long_prompts
    ]
    linked = [
        replace(setting, link=link)
        for link in (*options.links, *options.maps)
        if link != STEADY
        for setting in short[: len(options.temperatures)]
    ]
    return short + long + linked


def search_of(options: NearOptions, setting: NearSetting) -> Search:
    """The tuning of the rounds for a setting, on the split "tune"."""
    return Search(
        strategy=ROUNDS,
        seed=options.seed,
        first=Place(setting.profile, 0.0, setting.temperature),
        branches=(),
        prompts=options.tuning_prompts,
        tokens=options.tuning_tokens,
        trials=options.trials,
        family=setting.family,
        domains=(GENERALIST,),
    )


def planned(
    options: NearOptions, setting: NearSetting, tuned: Mapping[tuple[Family, str, float], OptionValues]
) -> Iterator[PlannedCell]:
    """The rounds once, for no distance changes them; plain decoding and every other way at each round-trip time."""
    prompts = Prompts(
        count=options.long_prompts if setting.is_long else options.prompts,
        family=setting.family,
        is_long=setting.is_long,
    )
    fields: dict[str, Any] = {
        "profile": setting.profile,
        "temperature": setting.temperature,
        "seed": options.seed,
        "max_new_tokens": options.max_new_tokens,
    }
    near = {**fields, "rtt_ms": 0.0}
    choice = tuned[setting.family, setting.profile, setting.temperature]
    rounds = Cell(strategy=ROUNDS, choice=choice, scenario={**near, "domains": (GENERALIST,)}, prompts=prompts)
    yield PlannedCell(setting, BESIDE_ROUNDS, 0.0, rounds)
    for rtt_ms in dict.fromkeys((0.0, *options.distances(setting))):
        between = LINKS.get(setting.link) or MAPS.get(setting.link, {})
        at = {**fields, "rtt_ms": rtt_ms, **(between if rtt_ms else {})}
        yield PlannedCell(setting, PLAIN.name, rtt_ms, Cell(strategy=PLAIN.name, scenario=at, prompts=prompts))
        for way, more in WAYS.items() if rtt_ms in options.distances(setting) else ():
            scenario = {**at, "coordination": Coordination.AUTO, **more}
            cell = Cell(strategy=OURS.name, choice={"policy": SHIPS}, scenario=scenario, prompts=prompts)
            yield PlannedCell(setting, way, rtt_ms, cell)


Measured = Mapping[tuple[NearSetting, str, float], tuple[PlannedCell, CellResult]]
"""Runs by setting, way and round-trip time."""


def rows_of(options: NearOptions, measured: Measured) -> list[JsonRow]:
    """A row for each way, at each round-trip time of its setting."""
    rows = []
    for setting in dict.fromkeys(key[0] for key in measured):
        for rtt_ms in options.distances(setting):
            plain = measured[setting, PLAIN.name, rtt_ms][1].seconds
            rows += [row_of(*measured[setting, way, rtt_ms], plain, seed=options.seed) for way in WAYS]
            # What distance adds to a stream that needs no answers is what it adds to plain decoding.
            near = measured[setting, PLAIN.name, 0.0][1].seconds
            further = {number: plain[number] - near[number] for number in plain}
            plan, rounds = measured[setting, BESIDE_ROUNDS, 0.0]
            plan = plan._replace(rtt_ms=rtt_ms)
            rows.append(row_of(plan, rounds, plain, seed=options.seed, further_s=further))
    return rows


def row_of(
    plan: PlannedCell,
    result: CellResult,
    plain: Mapping[int, float],
    *,
    seed: int,
    further_s: Mapping[int, float] = MappingProxyType({}),
) -> JsonRow:
    """A row, with `plain` the seconds of plain decoding by prompt, and what each prompt takes `further_s`."""
    seconds = {number: took_s + further_s.get(number, 0.0) for number, took_s in result.seconds.items()}
    return {
        **plan.setting.fields,
        "way": plan.way,
        "rtt_ms": plan.rtt_ms,
        **speedup_fields(seconds, plain, seed=seed),
        "options": {name: value for name, value in plan.cell.choice.items() if name != "policy"},
        "prompts": len(seconds),
        **result.checks,
    }


def findings_of(rows: Sequence[JsonRow]) -> JsonRow:
    """At each point cosine, with a drafter at the verifier and without, against the best that stands beside it."""
    kinds = ("family", "prompts_are", "profile", "temperature", "link")
    found = []
    for row in rows:
        if row["way"] != BOTH:
            continue
        beside = [
            other
            for other in rows
            if all(other[name] == row[name] for name in kinds)
            and other["way"] in (BESIDE_ROUNDS, ALONE, COPYING)
            and other["rtt_ms"] == row["rtt_ms"]
        ]
        best = max(beside, key=lambda other: float(other["speedup"]))
        found.append(
            {
                **{name: row[name] for name in (*kinds, "rtt_ms", "speedup")},
                "best_beside": best["way"],
                "ratio": row["speedup"] / best["speedup"],
            }
        )
    ours = [row for row in rows if row["way"] in (REMOTE, BOTH)]
    return {
        "against_beside": found,
        "lowest_ratio": min((entry["ratio"] for entry in found), default=None),
        "lowest_speedup": _lowest(row for row in ours if row["link"] == STEADY),
        "lowest_speedup_of_links": _lowest(row for row in ours if row["link"] != STEADY),
        **sum_of_checks(rows),
    }


def _lowest(rows: Iterable[JsonRow]) -> float | None:
    return min((float(row["speedup"]) for row in rows), default=None)


FIGURES: Final = (
    LinePlot(
        "near",
        rows_where(prompts_are=SHORT, link=STEADY),
        "{family}, {profile}, T {temperature}",
        "{way}",
        "rtt_ms",
        "speedup",
    ),
)
