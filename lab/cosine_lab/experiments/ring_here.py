"""A real target in parts by the clock: stages, their head and drafters are processes with delayed links.

The processes share this machine, and each delays what it writes to another one (`join --emulate @RTT`), so that a
traversal of the ring takes the time of its links and stages. Plain decoding, only the head's own drafter, and
volunteers take turns over the same questions. For each text the result has the waits of its tokens: those fed in
time come together with the one before, one that was fed after its predecessor was known takes a traversal.

With a `device` the passes of stages and drafters take emulated times, the questions are recorded ones, and the same
models run in the same ring in virtual time: a difference is an error of the simulation, or load of this machine.
"""

import tempfile
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any, Final

from cosine_engine import zoo
from cosine_engine.processor import processor_name
from cosine_lab.experiments.entrants import GENERALIST, OURS, PLAIN, SHIPS, OptionValues
from cosine_lab.experiments.experiment import (
    Cell,
    CellResult,
    JsonRow,
    Prompts,
    Say,
    grouped,
    run_cell,
)
from cosine_lab.experiments.here import (
    Asked,
    Contest,
    HereOptions,
    TimedRun,
    mismatches,
    questions_of,
    run_contest,
    speed_of,
)
from cosine_lab.experiments.here_cores import token_shares, with_all_columns
from cosine_lab.experiments.kinds import questions_of as questions_of_kinds
from cosine_lab.simulation.workload import ModelWorkload
from cosine_node.demo.race import OPTIONS, RacedWay
from cosine_node.demo.swarm import Cast, running_nodes
from cosine_node.passes.emulation import Emulation
from cosine_p2p import AsyncClient
from cosine_p2p.trust.mandates import Coordination

FIRST_TEXTS: Final = 3
"""The texts of a new client that are reported apart: it does not know yet which drafters pay."""
TOGETHER: Final = "with the one before"
PARTLY: Final = "part of a traversal"
WHOLE: Final = "a traversal"
"""What a token waited for."""
WAITS: Final = ((0.1, TOGETHER), (0.8, PARTLY))
"""Upper bounds in units of plain decoding's time of a token, which is a traversal."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RingHereOptions(HereOptions):
    """The requests over `stages` parts of the target, once for each of `rtts_ms` between any two nodes.

    drafters: Models of the volunteers, in one process. Default: the family's general one.
    home: Model of the head's own drafter, or `none`. Default: the family's general one.
    device: STAGE_MS/DRAFTER_MS of emulated passes. Default: none.
    """

    family: zoo.Family = zoo.Family.SMOL
    target: str = field(init=False)
    temperatures: tuple[float, ...] = (0.0, 0.8)
    rtts_ms: tuple[float, ...] = (20.0, 60.0, 150.0)
    prompts: int = 12
    repeats: int = 1
    stages: int = 3
    drafters: tuple[str, ...] | None = None
    home: str | None = None
    device: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "target", f"{zoo.SCHEME}{zoo.target_of(self.family)}")

    @classmethod
    def quick(cls) -> "RingHereOptions":
        return cls(temperatures=(0.0,), rtts_ms=(60.0,), prompts=2, tokens=16)

    @property
    def general(self) -> str:
        """The model of the family's general drafter."""
        return zoo.default_drafter(self.target)

    @property
    def volunteers(self) -> tuple[str, ...]:
        """The models of the volunteers."""
        return (self.general,) if self.drafters is None else self.drafters

    def cast(self, rtt_ms: float) -> Cast:
        """Return the nodes to start, with this round trip between any two. Raises `UsageError`."""
        return Cast(
            self.family,
            Emulation.parse(f"{self.device}@{rtt_ms:g}"),
            verifier_options=("--draft-model", self.home or self.general),
            own_drafters=self.volunteers,
            stages=self.stages,
        )

    def scenario(self, rtt_ms: float, temperature: float) -> dict[str, Any]:
        """Return the fields of the same ring in virtual time."""
        stages_ms = self.stages * Emulation.parse(self.device).verifier_ms
        return {
            "profile": self.device,
            "stages": self.stages,
            "traversal_ms": stages_ms + (self.stages + 1) * rtt_ms / 2,
            "rtt_ms": rtt_ms,
            "temperature": temperature,
            "max_new_tokens": self.tokens,
            "seed": self.seed,
        }

    @property
    def asked(self) -> list[Asked]:
        """The prompts: recorded ones with emulated passes, else those of every kind."""
        if self.prompts_from is not None:
            return list(questions_of(self))
        if self.device:
            recorded = Prompts(family=self.family, count=self.prompts).traces(max(self.temperatures))
            if all(trace.asked for trace in recorded):
                return [Asked(trace.domain, trace.asked, trace.seed) for trace in recorded]
        return list(map(Asked.of, questions_of_kinds(self.family)[: self.prompts]))


async def run_ring_here(options: RingHereOptions, *, rows: list[JsonRow], say: Say) -> JsonRow:
    """Start a ring for each round trip, measure it, and return one JSON object. `rows` are as in `here.run`.

    Raises `NodeDied`, and as a generation does.
    """

    @asynccontextmanager
    async def connect(rtt_ms: float) -> AsyncIterator[AsyncClient]:
        with tempfile.TemporaryDirectory(prefix="cosine-bench-") as folder:
            async with (
                running_nodes(cast := options.cast(rtt_ms), Path(folder), say) as nodes,
                AsyncClient([nodes.peer], memory=False, target=cast.target) as client,
            ):
                yield client

    result = await run_contest(connect, RING_HERE, options.asked, options, rows=rows, say=say)
    result["setup"] |= {
        "processor": processor_name(),
        "stages": options.stages,
        "drafter_models": list(options.volunteers),
        "home_drafter": options.home or options.general,
        "links_are": "delayed in the processes that write to them",
        **({"emulated_passes": options.device} if options.device else {}),
    }
    return result


def waits_of(runs: Mapping[str, Sequence[TimedRun]]) -> JsonRow:
    """Return for each way the waits of its tokens, in numbers of tokens, and the nodes drafted for a token."""
    traversal_s = median(gap_s for run in runs[PLAIN.name] for gap_s in run.gaps_s[1:])

    def wait(gap_s: float) -> str:
        return next((name for most, name in WAITS if gap_s < most * traversal_s), WHOLE)

    return {
        "waits": {way: Counter(wait(gap) for run in own for gap in run.gaps_s[1:]) for way, own in runs.items()},
        "drafted_per_token": {
            way: sum(run.drafted for run in own) / sum(len(run.token_ids) for run in own)
            for way, own in runs.items()
        },
    }


def findings_of(rows: Sequence[JsonRow], seed: int) -> dict[str, Any]:
    """Return for each round trip, temperature and way the speed, the first texts apart, waits and origins."""
    ways, waits, origins = list[JsonRow](), list[JsonRow](), list[JsonRow]()
    for (rtt_ms, temperature), own in grouped(rows, "emulated_rtt_ms", "temperature").items():
        for way in (RacedWay.COPYING.value, RacedWay.COSINE.value):
            place = {"emulated_rtt_ms": rtt_ms, "temperature": temperature, "way": way}
            ratios = [row["times_plain"][way] for row in own]
            first = [row["times_plain"][way] for row in own if row["prompt"] < FIRST_TEXTS]
            later = [row["times_plain"][way] for row in own if row["prompt"] >= FIRST_TEXTS]
            ways.append(
                {
                    **place,
                    **speed_of(own, way, seed=seed),
                    "least": min(ratios),
                    "first_texts": median(first or later),
                    "later_texts": median(later or first),
                    "drafted_per_token": median(row["drafted_per_token"][way] for row in own),
                }
            )
            waited = sum((Counter(row["waits"][way]) for row in own), Counter[str]())
            names = (TOGETHER, PARTLY, WHOLE)
            waits.append({**place, **{name: waited[name] / waited.total() for name in names}})
            origins.append({**place, **token_shares(own, way)})
    return {
        "ways": ways,
        "waits": waits,
        "token_shares": with_all_columns(origins),
        "mismatches": mismatches(rows),
        "compared": len(rows),
    }


def in_virtual_time(options: RingHereOptions, ways: Sequence[JsonRow]) -> Iterator[JsonRow]:
    """Yield the speed-up of each way over the same ring in virtual time, beside the measured one.

    By the clock a pass takes a stage `stage_more_ms` longer than the emulated time, as the measured plain decoding
    shows, and in virtual time as well. The same models write the same texts, unless the prompts of the family's
    recorded texts are not kept.
    """
    for (rtt_ms, temperature), found in grouped(ways, "emulated_rtt_ms", "temperature").items():
        yield from _rows_in_virtual_time(options, found, rtt_ms=rtt_ms, temperature=temperature)


def _rows_in_virtual_time(
    options: RingHereOptions, found: Sequence[JsonRow], *, rtt_ms: float, temperature: float
) -> Iterator[JsonRow]:
    prompts = Prompts(family=options.family, count=options.prompts)
    traces, models = prompts.traces(temperature), None
    if all(trace.asked for trace in traces):
        models = ModelWorkload(
            options.target, drafted_by=options.general, traces=traces, max_new_tokens=options.tokens
        )

    def run(strategy: str, choice: OptionValues, **fields: Any) -> CellResult:
        scenario = {**options.scenario(rtt_ms, temperature), **fields}
        return run_cell(Cell(strategy=strategy, choice=choice, scenario=scenario, prompts=prompts), models)

    plain = {"drafters": 0, "max_drafters": 0}
    clock_ms = found[0]["plain_ms_per_token"]
    more_ms = max(0.0, (clock_ms - run(PLAIN.name, {}, **plain).ms_per_token) / options.stages)
    alone = run(PLAIN.name, {}, **plain, stage_more_ms=more_ms)
    experts = tuple(model.rpartition("-")[2] for model in options.volunteers)
    for row in found:
        ours = {"coordination": Coordination.AUTO, "drafters": len(experts), "stage_more_ms": more_ms}
        ours |= {"domains": experts} if experts else {}
        ours |= {"max_drafters": 0} if row["way"] == RacedWay.COPYING.value else {}
        ours |= {"home": GENERALIST} if options.home != "none" else {}
        helped = run(OURS.name, {"policy": SHIPS}, **ours)
        times = median(seconds / helped.seconds[number] for number, seconds in alone.seconds.items())
        yield {
            "emulated_rtt_ms": rtt_ms,
            "temperature": temperature,
            "way": row["way"],
            "stage_more_ms": more_ms,
            "clock_times_plain": row["times_plain"],
            "virtual_times_plain": times,
            "clock_of_virtual": row["times_plain"] / times,
        }


RING_HERE: Final = Contest(
    what="Seconds a token of each way over a ring of stages, in turns, by the clock.",
    # An audit would take time from the stages of the next request.
    ways={way.value: {**OPTIONS[way], "audit": 0.0} for way in RacedWay},
    typical=median,
    findings_of=findings_of,
    warms_all=False,
    about=waits_of,
)
