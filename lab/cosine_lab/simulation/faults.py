"""Faults of a simulated swarm and their times: plans drawn from a seed or written as a SPEC.

A SPEC is a list like `kill-drafter=2,stall=1@0.5+6,liar=flood`: a kind and a count, or the name of a lie for liars,
then the second of the beginning and the duration in seconds, unless these are drawn.
"""

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import StrEnum
from random import Random
from typing import Final

from cosine_lab.simulation.liars import LATE, LIES
from cosine_protocol.errors import UsageError

RANDOM: Final = "random"
"""The SPEC that draws the faults too."""
MAX_FAULTS: Final = 1000
"""Bounds memory: maximum number of faults of one entry of a SPEC."""
LIE_NAMES: Final = (*LIES, LATE)
"""All lies of a `FaultKind.LIAR`."""
_ENTRY: Final = re.compile(r"([a-z-]+)(?:=([a-z0-9_-]+))?(?:@(\d+(?:\.\d+)?))?(?:\+(\d+(?:\.\d+)?))?")
"""KIND=COUNT@BEGINS+LASTS, with all parts but the kind optional."""


class FaultKind(StrEnum):
    """The kinds of faults."""

    KILL_DRAFTER = "kill-drafter"
    KILL_VERIFIER = "kill-verifier"
    KILL_CLIENT = "kill-client"
    RESTART_DRAFTER = "restart-drafter"
    RESTART_VERIFIER = "restart-verifier"
    PARTITION = "partition"
    """Some nodes are cut off from all others for a while."""
    STALL = "stall"
    """A verifier's pass does not end for a while; its heartbeats continue."""
    SLOW = "slow"
    """A node's passes take several times the announced time."""
    BAD_ROW = "bad-row"
    """A pass of a verifier gives NaN for one request."""
    CORRUPT = "corrupt"
    """A wrong byte arrives from a node."""
    BUSY = "busy"
    """A drafter follows no request."""
    OVERLOAD = "overload"
    """A verifier accepts no request."""
    LIAR = "liar"
    """One more drafter, which lies."""
    KILL_STAGE = "kill-stage"
    """The first node that holds a part of the target vanishes."""


# The nodes that a kind can affect; SLOW, CORRUPT and PARTITION can affect any.
ON_VERIFIERS: Final = frozenset(
    {FaultKind.KILL_VERIFIER, FaultKind.RESTART_VERIFIER, FaultKind.STALL, FaultKind.BAD_ROW, FaultKind.OVERLOAD}
)
ON_DRAFTERS: Final = frozenset({FaultKind.KILL_DRAFTER, FaultKind.RESTART_DRAFTER, FaultKind.BUSY})
HARMLESS_TO_NODES: Final = frozenset({FaultKind.SLOW, FaultKind.KILL_CLIENT, FaultKind.LIAR, FaultKind.KILL_STAGE})
"""Faults with which a verifier can still finish every request; for a killed stage with a replacement."""
LASTS_S: Final = {
    FaultKind.RESTART_DRAFTER: (0.2, 3.0),
    FaultKind.RESTART_VERIFIER: (0.2, 3.0),
    FaultKind.PARTITION: (0.5, 8.0),
    FaultKind.STALL: (0.5, 10.0),
    FaultKind.SLOW: (2.0, 5.0),
}
"""Ranges of drawn durations, for `SLOW` of the factor. They include values below and above the timeouts of
heartbeats and failover.
"""
SPARE_FAULT_PROBABILITY: Final = 0.1
"""Bounds drawn faults of the only verifier, which mostly just fail requests."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Population:
    """The nodes and clients that faults can affect, and the seconds in which faults begin.

    Verifiers are numbered first. The last verifier is spared as long as possible.
    """

    verifiers: int
    drafters: int
    clients: int
    horizon_s: float
    stages: int = 0

    @property
    def spare(self) -> int:
        return self.verifiers - 1

    def candidates(self, kind: FaultKind) -> list[int]:
        """Return the numbers that a kind can affect; the spare verifier only if there is no other."""
        drafters = list(range(self.verifiers, self.verifiers + self.drafters))
        if kind is FaultKind.KILL_CLIENT:
            return list(range(self.clients))
        if kind is FaultKind.KILL_STAGE:
            return list(range(self.stages))
        if kind in ON_DRAFTERS:
            return drafters
        but_spare = list(range(self.spare))
        return (but_spare if kind in ON_VERIFIERS else but_spare + drafters) or [self.spare]


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One event: its kind, the affected nodes, its time and its duration.

    `affected` are `Population` numbers of nodes, or of a client or a stage for a kind that kills those. `lasts_s`
    is the factor of a `SLOW` node. `lie` is the name of a liar's lie.
    """

    kind: FaultKind
    affected: tuple[int, ...] = ()
    at_s: float = 0.0
    lasts_s: float = 0.0
    lie: str = ""


@dataclass(frozen=True, slots=True)
class FaultPlan:
    """All faults of one run, in order of time."""

    faults: tuple[Fault, ...] = ()

    def of(self, kind: FaultKind) -> tuple[Fault, ...]:
        return tuple(fault for fault in self.faults if fault.kind is kind)

    def affects(self, kind: FaultKind, number: int) -> bool:
        return any(number in fault.affected for fault in self.of(kind))

    def spares(self, node: int) -> bool:
        """Return True if a node stays able to work all the time."""
        return not any(node in fault.affected for fault in self.faults if fault.kind not in HARMLESS_TO_NODES)

    @property
    def lies(self) -> tuple[str, ...]:
        return tuple(fault.lie for fault in self.of(FaultKind.LIAR))

    @property
    def ends_s(self) -> float:
        """The time at which the last fault is over."""
        return max((fault.at_s + fault.lasts_s for fault in self.faults), default=0.0)

    def counts(self) -> dict[str, int]:
        """Return the number of faults of each kind."""
        return dict(sorted(Counter(fault.kind.value for fault in self.faults).items()))


@dataclass(frozen=True, slots=True, kw_only=True)
class SpecEntry:
    """One entry of a SPEC. Times that are None are drawn."""

    kind: FaultKind
    count: int
    lie: str
    at_s: float | None
    lasts_s: float | None


def parse_spec(spec: str) -> list[SpecEntry]:
    """Parse the entries of a SPEC; none for `random`. Raises `UsageError`."""
    entries = []
    for text in map(str.strip, spec.split(",")):
        if not text or spec == RANDOM:
            continue
        match = _ENTRY.fullmatch(text)
        if match is None or match[1] not in list(FaultKind):
            raise UsageError(f"{text!r} is no fault; write KIND=COUNT with a KIND of {', '.join(FaultKind)}.")
        kind, value, count, lie = FaultKind(match[1]), match[2] or "1", 1, ""
        if kind is FaultKind.LIAR:
            lie = value.replace("-", "_")
            if lie not in LIE_NAMES:
                raise UsageError(f"There is no lie {value!r}; choose one of {', '.join(LIE_NAMES)}.")
        elif value.isdecimal() and 1 <= int(value) <= MAX_FAULTS:
            count = int(value)
        else:
            raise UsageError(f"{text!r} lacks a count from 1 to {MAX_FAULTS} times.")
        at_s, lasts_s = (None if part is None else float(part) for part in (match[3], match[4]))
        entries.append(SpecEntry(kind=kind, count=count, lie=lie, at_s=at_s, lasts_s=lasts_s))
    return entries


def plan_faults(spec: str, *, rng: Random, population: Population) -> FaultPlan:
    """Return the plan of a SPEC; `random` draws one. Raises `UsageError`."""
    if spec == RANDOM:
        faults = draw_faults(rng, population)
    else:
        faults = _faults_of_entries(parse_spec(spec), rng, population)
    return FaultPlan(tuple(sorted(faults, key=lambda fault: fault.at_s)))


def draw_faults(rng: Random, population: Population) -> Iterator[Fault]:
    """Draw up to five faults of any kind; about one plan in ten with a single verifier may stop it."""
    kinds = [kind for kind in FaultKind if population.candidates(kind) or kind is FaultKind.LIAR]
    for kind in rng.choices(kinds, k=rng.choice((0, 0, 1, 1, 2, 2, 3, 4, 5))):
        hits_spare = kind in ON_VERIFIERS and population.candidates(kind) == [population.spare]
        if not hits_spare or rng.random() < SPARE_FAULT_PROBABILITY:
            yield _draw_fault(kind, rng, population, lie=rng.choice(LIE_NAMES), counts=Counter())


def _faults_of_entries(entries: list[SpecEntry], rng: Random, population: Population) -> Iterator[Fault]:
    counts: Counter[tuple[FaultKind, int]] = Counter()
    for entry in entries:
        if entry.kind is not FaultKind.LIAR and not population.candidates(entry.kind):
            raise UsageError(f"Nothing in this swarm can have the fault {entry.kind!s}.")
        for _ in range(entry.count):
            fault = _draw_fault(entry.kind, rng, population, lie=entry.lie, counts=counts)
            yield replace(
                fault,
                at_s=fault.at_s if entry.at_s is None else entry.at_s,
                lasts_s=fault.lasts_s if entry.lasts_s is None else entry.lasts_s,
            )


def _draw_fault(
    kind: FaultKind, rng: Random, population: Population, *, lie: str, counts: Counter[tuple[FaultKind, int]]
) -> Fault:
    """Return a fault of one kind, and update `counts`, the faults so far of each kind and node.

    It affects a node without this kind so far; then the spare verifier; then any node again.
    """
    at_s = rng.uniform(0, population.horizon_s)
    lasts_s = rng.uniform(*LASTS_S[kind]) if kind in LASTS_S else 0.0
    if kind is FaultKind.LIAR:
        return Fault(kind=kind, lie=lie)
    candidates = population.candidates(kind)
    if kind is FaultKind.PARTITION:
        group = tuple(sorted(rng.sample(candidates, rng.randint(1, len(candidates)))))
        return Fault(kind=kind, affected=group, at_s=at_s, lasts_s=lasts_s)
    fresh = [number for number in candidates if not counts[kind, number]]
    if not fresh and kind in ON_VERIFIERS and not counts[kind, population.spare]:
        fresh = [population.spare]
    number = rng.choice(fresh or candidates)
    counts[kind, number] += 1
    return Fault(kind=kind, affected=(number,), at_s=at_s, lasts_s=lasts_s)
