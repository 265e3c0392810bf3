"""A drafter that learns a domain: what it guesses right after ever more learned tokens, and what requests gain.

One drafter of each family was recorded along held-out texts of its own domain and of a new one, as shipped and
after one round of learning from so many tokens of the new one (`cosine_lab.training.record_learning`). Requests
run with a swarm that it is in: before and after it has learned, and while it learns. Objections stand beside: an
expert of the new domain by training in its place, a generalist at the verifier, copying alone.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from cosine_lab.experiments.entrants import GENERALIST, OURS, PLAIN, SHIPS
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
)
from cosine_lab.report.intervals import bootstrap_interval, ratio_and_interval, ratio_of_sums, speedup_fields
from cosine_lab.report.learn_findings import (
    AFTER,
    BEFORE,
    EXPERT,
    LEARNING,
    NEW_DOMAIN,
    OWN_DOMAIN,
    SHIPPED_ONLY,
    findings_of,
)
from cosine_lab.simulation.learning_curve import (
    hits_along,
    learned_tokens,
    learning_domain,
    learning_traces,
    version_name,
)
from cosine_lab.simulation.report import RequestResult
from cosine_lab.simulation.traces import Trace
from cosine_lab.simulation.workload import LOOKUP
from cosine_node.zoo.family import Family
from cosine_p2p.trust.mandates import Coordination

COPYING: Final = "the verifier copies"
AT_VERIFIER: Final = ", a generalist at the verifier"
LONE: Final = ", no other drafter"
LEARNER: Final = "learner"
WAYS: Final[Mapping[str, tuple[str, Mapping[str, Any]]]] = MappingProxyType(
    {
        COPYING: ("", {"max_drafters": 0}),
        BEFORE: (BEFORE, {}),
        AFTER: (AFTER, {}),
        EXPERT: (EXPERT, {}),
        BEFORE + LONE: (BEFORE, {}),
        AFTER + LONE: (AFTER, {}),
        BEFORE + AT_VERIFIER: (BEFORE, {"home": GENERALIST}),
        AFTER + AT_VERIFIER: (AFTER, {"home": GENERALIST}),
    }
)
"""Ways that run as they ship: who stands in the learner's place, and further fields of `Scenario`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedPrompts(Prompts):
    """The prompts of a domain along which a drafter that learns was recorded."""

    domain: str

    def traces(self, temperature: float) -> Sequence[Trace]:
        """The first `count` at a temperature."""
        return learning_traces(self.family).select(temperature=temperature, domains=(self.domain,))[: self.count]


@dataclass(frozen=True, slots=True, kw_only=True)
class LearnOptions(ExperimentOptions):
    """The families of the curves and of requests, `prompts` of each domain and temperature before and after.

    To a swarm that learns meanwhile `swarm_requests` of each of `swarm_clients` clients come in a random order of
    time, so many a second of all together. Fewer clients than eight would be held to equal shares
    (`cosine_node.learning.stream_store.fair_part`).
    """

    families: tuple[str, ...] = (Family.TOY, Family.SMOL)
    swarm_families: tuple[str, ...] = (Family.TOY,)
    profile: str = "60/6"
    rtt_ms: float = 20.0
    temperatures: tuple[float, ...] = (0.0, 0.8)
    prompts: int | None = None
    max_new_tokens: int = RECORDED_TOKENS
    swarm_temperatures: tuple[float, ...] = (0.8,)
    swarm_clients: int = 8
    swarm_requests: int = 18
    swarm_arrivals_per_s: float = 0.05

    @classmethod
    def quick(cls) -> "LearnOptions":
        return cls(
            families=(Family.TOY,),
            temperatures=(0.8,),
            prompts=1,
            max_new_tokens=12,
            swarm_temperatures=(),
        )

    def cell(self, place: "Place", drafters: Sequence[str], *, prompts: int | None, **fields: Any) -> Cell:
        """A cell of `cosine` as it ships with drafters of these expertises, the last of which may learn."""
        asked = RecordedPrompts(family=Family(place.family), domain=place.domain, count=prompts)
        scenario = {
            **self._scenario(place),
            "domains": tuple(drafters),
            "coordination": Coordination.AUTO,
            **fields,
        }
        return Cell(strategy=OURS.name, choice={"policy": SHIPS}, scenario=scenario, prompts=asked)

    def plain(self, place: "Place") -> Cell:
        """Nobody drafts."""
        asked = RecordedPrompts(family=Family(place.family), domain=place.domain, count=self.prompts)
        scenario = {**self._scenario(place), "domains": (LOOKUP,), "drafters": 0, "max_drafters": 0}
        return Cell(strategy=PLAIN.name, scenario=scenario, prompts=asked)

    def _scenario(self, place: "Place") -> dict[str, Any]:
        return {
            "profile": self.profile,
            "rtt_ms": self.rtt_ms,
            "temperature": place.temperature,
            "seed": self.seed,
            "max_new_tokens": self.max_new_tokens,
        }


class Place(NamedTuple):
    """What is asked for, of whose drafters."""

    family: str
    domain: str
    temperature: float


class PlannedRequests(NamedTuple):
    """What a row measures."""

    place: Place
    way: str
    cell: Cell


class RecordedLearner(NamedTuple):
    """Who learns in a family: its own domain and the new one, its last number of learned tokens, and the others."""

    own: str
    new: str
    tokens: int
    others: tuple[str, ...]

    @property
    def domains(self) -> tuple[str, str]:
        return self.new, self.own


def learner_of(family: str) -> RecordedLearner:
    """The learner of the recorded runs of a family."""
    traces = learning_traces(Family(family))
    own = learning_domain(traces)
    [new] = {trace.domain for trace in traces} - {own}
    model = f"draft-{own}"
    experts = sorted(name.removeprefix("draft-") for name in next(iter(traces)).drafters if model not in name)
    others = (*(expert for expert in experts if expert != new), LOOKUP)
    return RecordedLearner(own, new, learned_tokens(traces, model)[-1], others)


def run(options: LearnOptions, *, say: Say) -> JsonRow:
    """The recorded curves, requests before and after, and a swarm that learns; the result (docs/benchmarks.md)."""
    curves = [row for family in options.families for row in curve_rows(family, seed=options.seed)]
    plans = list(planned(options))
    swarms = list(planned_swarms(options))
    say(f"{len(plans) + len(swarms)} cells to measure")
    # The longest first: they take minutes each.
    cells = [plan.cell for plan in (*swarms, *plans)]
    results = in_processes(run_cell, cells, processes=options.processes, say=say)
    done = dict(zip((plan[:2] for plan in plans), results[len(swarms) :], strict=True))
    speeds = [row_of(*key, result, done[key[0], PLAIN.name], seed=options.seed) for key, result in done.items()]
    learning = {plan[:2]: result for plan, result in zip(swarms, results, strict=False)}
    rows = [*curves, *speeds, *(row for key, one in learning.items() for row in swarm_rows(*key, one, options))]
    return {
        "what": "How often a drafter's first choice is right after it has learned from so many tokens of a domain "
        "that is not its own, and what requests gain in a swarm that it is in.",
        "setup": {
            **setup_of(options),
            **emulated((options.profile,), options.rtt_ms),
            "learners": {family: learner_of(family)._asdict() for family in options.families},
            "versions": "one round of learning each, from the shipped weights; texts of the new domain alone",
            "prompts_are": "fillers of the true length: copying finds what the answer repeats, never the question",
            "intervals": "95 %, by bootstrap over the texts or requests",
        },
        "rows": rows,
        "findings": findings_of(rows, learning, seed=options.seed),
    }


def curve_rows(family: str, *, seed: int) -> Iterator[JsonRow]:
    """First choices by learned tokens, in both domains; gains are in points, over the drafter as shipped."""
    traces, learner = learning_traces(Family(family)), learner_of(family)
    model = f"draft-{learner.own}"
    for domain, tokens in product(learner.domains, learned_tokens(traces, model)):
        own = traces.select(domains=(domain,))
        lengths = [len(trace.stream) for trace in own]
        before = [hits_along(trace, model) for trace in own]
        after = [hits_along(trace, version_name(model, tokens)) for trace in own]
        share = ratio_and_interval(after, lengths, seed=seed)
        more = [last - first for first, last in zip(before, after, strict=True)]
        gain = ratio_and_interval(more, lengths, seed=seed)
        yield {
            "part": "curve",
            "family": family,
            "drafter": model,
            "learns": learner.new,
            "domain": domain,
            "domain_is": OWN_DOMAIN if domain == learner.own else NEW_DOMAIN,
            "learned_tokens": tokens,
            "first_choice": share["ratio"],
            "interval": share["interval"],
            "gain_points": 100 * gain["ratio"],
            "gain_interval": [100 * end for end in gain["interval"]],
            "texts": len(own),
            "tokens": sum(lengths),
        }


def planned(options: LearnOptions) -> Iterator[PlannedRequests]:
    """Every way at each place, plain decoding first; in the learner's own domain before and after alone."""
    for family in options.families:
        learner = learner_of(family)
        stands_in = {
            BEFORE: learner.own,
            AFTER: version_name(learner.own, learner.tokens),
            EXPERT: learner.new,
        }
        for domain, temperature in product(learner.domains, options.temperatures):
            place = Place(family, domain, temperature)
            yield PlannedRequests(place, PLAIN.name, options.plain(place))
            for way, (who, fields) in WAYS.items():
                if domain == learner.own and way not in (BEFORE, AFTER):
                    continue
                others = () if way.endswith(LONE) else learner.others
                drafters = (*others, stands_in[who]) if who else (LOOKUP,)
                yield PlannedRequests(place, way, options.cell(place, drafters, prompts=options.prompts, **fields))


def planned_swarms(options: LearnOptions) -> Iterator[PlannedRequests]:
    """Many requests of the new domain, to a drafter that learns and to one that does not."""
    for family, temperature in product(options.swarm_families, options.swarm_temperatures):
        learner = learner_of(family)
        place = Place(family, learner.new, temperature)
        for way, learners in ((LEARNING, 1), (SHIPPED_ONLY, 0)):
            cell = options.cell(
                place,
                (*learner.others, learner.own),
                prompts=None,
                clients=options.swarm_clients,
                requests=options.swarm_requests,
                arrivals_per_s=options.swarm_arrivals_per_s,
                learners=learners,
            )
            yield PlannedRequests(place, way, cell)


def row_of(place: Place, way: str, result: CellResult, plain: CellResult, *, seed: int) -> JsonRow:
    """A row of requests before or after learning, with `plain` the run without drafts."""
    return {
        "part": "requests",
        **place._asdict(),
        "way": way,
        **_speed(result.report.results, seed=seed),
        **speedup_fields(result.seconds, plain.seconds, seed=seed),
        "prompt_s": [one.seconds for one in result.report.results],
        **result.checks,
    }


def swarm_rows(place: Place, way: str, result: CellResult, options: LearnOptions) -> Iterator[JsonRow]:
    """A row for each quarter of the requests to a swarm."""
    for quarter, results in enumerate(result.report.parts(), 1):
        until_s = max(one.began_s for one in results)
        switches = [switch for learner in result.report.learners for switch in learner.switches]
        yield {
            "part": "swarm",
            **place._asdict(),
            "way": way,
            "quarter": quarter,
            **_speed(results, seed=options.seed),
            "requests": len(results),
            "version_at_the_end": max((one.tokens for one in switches if one.at_s <= until_s), default=0),
            "mismatches": sum(not one.is_match for one in results),
            "violations": len(result.report.violations()) if quarter == 1 else 0,
        }


def _speed(results: Sequence[RequestResult], *, seed: int) -> JsonRow:
    """Tokens a second of a request, with its interval over requests."""
    pairs = [(one.tokens, one.seconds) for one in results]
    tokens, seconds = map(sum, zip(*pairs, strict=True))
    return {
        "tokens_per_s": tokens / seconds,
        "tokens_per_s_interval": bootstrap_interval(pairs, ratio_of_sums, seed=seed),
    }
