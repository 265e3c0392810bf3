"""A target in parts: the default strategy against other ways to feed a ring of stages, over the same stages.

A pass takes a traversal of the ring for any number of tokens. Plain decoding, a synchronous chain and a synchronous
tree keep one pass under way; chunks, as in leyten/shard, are pieces of one path with several under way, all of
which a rejection drops. `cosine` feeds a tree below nodes under way. All have the same stages, drafters and
copying; the rivals have the width that was best on the split "tune".
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from cosine_engine.ngram import FollowerIndex
from cosine_engine.zoo.family import Family
from cosine_lab.emulation.traces import CANDIDATES, Trace
from cosine_lab.experiments.entrants import GENERALIST, OURS, PLAIN, SHIPS
from cosine_lab.experiments.experiment import (
    TUNE_SPLIT,
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
from cosine_lab.report.intervals import bootstrap_interval, ratio_and_interval, ratio_of_sums, speedup_fields
from cosine_lab.report.plots import LinePlot, rows_where
from cosine_p2p.trust.mandates import Coordination

CHAIN: Final = "synchronous chain"
TREE: Final = "synchronous tree"
CHUNKS: Final = "chunks with flush"
UNTRIED: Final = "cosine, without trials of the client"
TOLD: Final = "cosine, drafters told which candidates are right"
BESIDE: Final = "cosine, a drafter beside the head"
"""Labels of rows, the first three of rivals. Informed drafters still lack tokens outside their candidates."""
RIVAL_WAYS: Final = (CHAIN, TREE, CHUNKS)
OUR_WAYS: Final = (OURS.name, UNTRIED, BESIDE)
PLACE: Final = ("temperature", "traversal_ms")
"""The fields that name a point of the sweep."""

PATH: Final = "path-{}"
WIDE: Final = "tree-{}"
"""Names in `POLICIES` by the nodes of a pass: of the most probable path, and of a tree."""
ONE_PASS: Final[Mapping[str, Any]] = MappingProxyType({"most_under_way": 1})
RIVALS: Final[Mapping[str, tuple[tuple[str, ...], Mapping[str, Any]]]] = {
    CHAIN: (tuple(PATH.format(nodes) for nodes in (4, 8)), ONE_PASS),
    TREE: (tuple(WIDE.format(nodes) for nodes in (16, 32)), ONE_PASS),
    CHUNKS: (tuple(PATH.format(nodes) for nodes in (2, 4, 8)), {}),
}
"""The policies over which each rival is tuned, and its fields of `Scenario`."""
WITHOUT_TRIALS: Final = "ships-no-account"
OBJECTIONS: Final[Mapping[str, tuple[str, Mapping[str, Any]]]] = {
    UNTRIED: (WITHOUT_TRIALS, {}),
    TOLD: (SHIPS, {"is_oracle": True}),
    BESIDE: (SHIPS, {"home": GENERALIST}),
}
"""Objections to the default strategy, with policy and fields of `Scenario`: clients of rivals try nothing either,
drafters could know which of their candidates are right, and one could run at the head.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class RingOptions(ExperimentOptions):
    """The sweep: `prompts` prompts at each time of a traversal and temperature, one of each domain of the family.

    Objections are measured only at `objections_at_ms`. Rivals are tuned at `tuned_at_ms` with `tuning_prompts`
    prompts of `tuning_tokens` tokens at each temperature, and keep that width at other traversals; with
    `tuning_prompts` 0 they have the first width.
    """

    family: Family = Family.SMOL
    profile: str = "15/6"
    stages: int = 4
    rtt_ms: float = 20.0
    traversals_ms: tuple[float, ...] = (100.0, 200.0, 350.0)
    objections_at_ms: tuple[float, ...] = (200.0,)
    temperatures: tuple[float, ...] = (0.0, 0.8)
    prompts: int = 4
    max_new_tokens: int = 64
    tuned_at_ms: float = 200.0
    tuning_prompts: int = 2
    tuning_tokens: int = 64

    @classmethod
    def quick(cls) -> "RingOptions":
        return cls(
            family=Family.TOY,
            traversals_ms=(200.0,),
            temperatures=(0.8,),
            prompts=1,
            max_new_tokens=6,
            tuning_prompts=0,
        )

    def cell(
        self, temperature: float, traversal_ms: float, *, policy: str, prompts: Prompts, **fields: Any
    ) -> Cell:
        """A cell in which drafters draft for a head."""
        scenario = {**self._ring(temperature, traversal_ms), "coordination": Coordination.AUTO, **fields}
        return Cell(strategy=OURS.name, choice={"policy": policy}, scenario=scenario, prompts=prompts)

    def plain(self, temperature: float, traversal_ms: float) -> Cell:
        """Return the time of a token with each traversal, without drafts."""
        scenario = {**self._ring(temperature, traversal_ms), "drafters": 0, "max_drafters": 0}
        return Cell(strategy=PLAIN.name, scenario=scenario, prompts=self.measured_prompts)

    @property
    def measured_prompts(self) -> Prompts:
        return Prompts(family=self.family, count=self.prompts)

    def _ring(self, temperature: float, traversal_ms: float) -> dict[str, Any]:
        return {
            "profile": self.profile,
            "stages": self.stages,
            "traversal_ms": traversal_ms,
            "rtt_ms": self.rtt_ms,
            "temperature": temperature,
            "seed": self.seed,
            "max_new_tokens": self.max_new_tokens,
        }


class RingPlan(NamedTuple):
    """The labels and fields of a measured row."""

    way: str
    temperature: float
    traversal_ms: float
    policy: str
    cell: Cell


def run(options: RingOptions, *, say: Say) -> JsonRow:
    """Tune the rivals, measure every way, and return the result (docs/benchmarks.md)."""
    tuned = tuned_policies(options, say=say)
    plans = list(planned(options, tuned))
    say(f"{len(plans)} cells to measure")
    results = in_processes(run_cell, [plan.cell for plan in plans], processes=options.processes, say=say)
    plain = {plan[1:3]: result for plan, result in zip(plans, results, strict=True) if plan.way == PLAIN.name}
    rows = [
        row_of(plan, result, plain[plan[1:3]], seed=options.seed)
        for plan, result in zip(plans, results, strict=True)
    ]
    traces = {temperature: options.measured_prompts.traces(temperature) for temperature in options.temperatures}
    coverage = {t: coverage_of(own, tokens=options.max_new_tokens) for t, own in traces.items()}
    return {
        "what": "How many tokens a second one request gets of a target in parts, by the time that a pass takes "
        "through all of them and back, and by how the head feeds them.",
        "setup": {
            **setup_of(options),
            **emulated((options.profile,), options.rtt_ms),
            "emulated_traversal_ms": options.traversals_ms,
            "stages_are": f"{options.stages} parts of the target, each of which takes a verifier's time for a pass",
            "drafters": "those of the family, and one that copies text",
            "tuned": {f"{way}, T {temperature:g}": policy for (way, temperature), policy in tuned.items()},
            "intervals": "95 %, by bootstrap over the prompts",
        },
        "rows": rows,
        "findings": findings_of(rows, coverage, seed=options.seed),
    }


def tuned_policies(options: RingOptions, *, say: Say) -> dict[tuple[str, float], str]:
    """Return the policy of each rival at each temperature with the least time on the split "tune"."""
    tried = [
        (way, temperature, policy)
        for way, temperature in product(RIVALS, options.temperatures)
        for policy in RIVALS[way][0]
    ]
    best = {(way, temperature): RIVALS[way][0][0] for way, temperature, _ in tried}
    if not options.tuning_prompts:
        return best
    prompts = Prompts(split=TUNE_SPLIT, family=options.family, count=options.tuning_prompts)
    cells = [
        options.cell(
            temperature,
            options.tuned_at_ms,
            policy=policy,
            prompts=prompts,
            **RIVALS[way][1],
            max_new_tokens=options.tuning_tokens,
        )
        for way, temperature, policy in tried
    ]
    took = in_processes(run_cell, cells, processes=options.processes, say=say)
    seconds = {key: result.total_s for key, result in zip(tried, took, strict=True)}
    return {place: min(RIVALS[place[0]][0], key=lambda policy: seconds[*place, policy]) for place in best}


def planned(options: RingOptions, tuned: Mapping[tuple[str, float], str]) -> Iterator[RingPlan]:
    """Measure every way at each temperature and time of a traversal, plain decoding first."""
    for temperature, traversal_ms in product(options.temperatures, options.traversals_ms):
        plain = options.plain(temperature, traversal_ms)
        yield RingPlan(PLAIN.name, temperature, traversal_ms, "", plain)
        rivals = {way: (tuned[way, temperature], more) for way, (_, more) in RIVALS.items()}
        ours = {OURS.name: (SHIPS, dict[str, Any]())}
        objections = OBJECTIONS if traversal_ms in options.objections_at_ms else {}
        for way, (policy, more) in {**rivals, **ours, **objections}.items():
            cell = options.cell(temperature, traversal_ms, policy=policy, prompts=options.measured_prompts, **more)
            yield RingPlan(way, temperature, traversal_ms, policy, cell)


def row_of(plan: RingPlan, result: CellResult, plain: CellResult, *, seed: int) -> JsonRow:
    """Return a row, with `plain` the run without drafts over the same ring."""
    pairs = [(r.tokens, r.seconds) for r in result.report.results]
    return {
        "way": plan.way,
        "temperature": plan.temperature,
        "traversal_ms": plan.traversal_ms,
        "policy": plan.policy,
        "tokens_per_s": result.report.tokens / result.total_s,
        "tokens_per_s_interval": bootstrap_interval(pairs, ratio_of_sums, seed=seed),
        **speedup_fields(result.seconds, plain.seconds, seed=seed),
        "prompt_s": [seconds for _, seconds in pairs],
        "prompts": len(pairs),
        "max_new_tokens": plan.cell.scenario["max_new_tokens"],
        **result.checks,
    }


def is_covered(trace: Trace, *, tokens: int) -> Iterator[tuple[bool, bool]]:
    """Yield for each of the first tokens whether any drafter, or copying, offers it, also as first choice."""
    index = FollowerIndex()
    for position, token in enumerate(trace.stream[:tokens]):
        copied = [found for found, _ in index.estimate().found[:CANDIDATES]]
        offers = [copied, *(own.candidate_tokens[position].tolist() for own in trace.drafters.values())]
        yield any(token in offer for offer in offers), any(offer[:1] == [token] for offer in offers)
        index.extend([token])


def coverage_of(traces: Sequence[Trace], *, tokens: int) -> JsonRow:
    """Return the share of tokens `covered` by the offers of any drafter, or copying, in their place.

    Of each text the first `tokens` tokens count; `first_choices` is the share that is a first choice of any.
    """
    offers = [offer for trace in traces for offer in is_covered(trace, tokens=tokens)]
    positions, covered, first = len(offers), sum(any_one for any_one, _ in offers), sum(f for _, f in offers)
    return {"positions": positions, "covered": covered / positions, "first_choices": first / positions}


def findings_of(rows: Sequence[JsonRow], coverage: Mapping[float, JsonRow], *, seed: int) -> JsonRow:
    """Return the findings against plain decoding and the best rival, the floor, and the limit by coverage."""
    return {
        "against": list(_against(rows, seed=seed)),
        "lowest_speedup": min(row["speedup"] for row in rows if row["way"] in OUR_WAYS),
        "coverage": [{"temperature": temperature, **found} for temperature, found in coverage.items()],
        "limits": list(_limits(rows, coverage)),
        **sum_of_checks(rows),
    }


def _against(rows: Sequence[JsonRow], *, seed: int) -> Iterator[JsonRow]:
    """Compare each of our ways with the best rival at every point, by ratios of total time."""
    for together in grouped(rows, *PLACE).values():
        best = max((row for row in together if row["way"] in RIVAL_WAYS), key=lambda row: float(row["speedup"]))
        for row in together:
            if row["way"] in OUR_WAYS:
                yield {
                    **{name: row[name] for name in ("way", *PLACE, "speedup")},
                    "tokens_per_s": row["tokens_per_s"],
                    "best_rival": best["way"],
                    "best_rival_tokens_per_s": best["tokens_per_s"],
                    **ratio_and_interval(best["prompt_s"], row["prompt_s"], seed=seed),
                }


def _limits(rows: Sequence[JsonRow], coverage: Mapping[float, JsonRow]) -> Iterator[JsonRow]:
    """Return the measured speeds, and their limit by uncovered tokens, each of which costs a traversal.

    The token after one cannot be under way before it is known, which bounds the speed by `bound`.
    """
    for (temperature, traversal_ms), together in grouped(rows, *PLACE).items():
        speed = {row["way"]: row["tokens_per_s"] for row in together}
        missed_s = (1.0 - coverage[temperature]["covered"]) * traversal_ms / 1e3
        yield {
            "temperature": temperature,
            "traversal_ms": traversal_ms,
            "cosine": speed[OURS.name],
            "told_which_are_right": speed.get(TOLD),
            "bound": 1.0 / missed_s if missed_s else None,
        }


FIGURES: Final = (
    LinePlot(
        "ring",
        rows_where(),
        "T {temperature}",
        "{way}",
        "traversal_ms",
        "tokens_per_s",
        band="tokens_per_s_interval",
    ),
)
