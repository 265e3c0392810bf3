"""What goes wrong in a simulated swarm, and when: plans drawn from a seed or written as a SPEC.

A SPEC is a list like `kill-drafter=2,stall=1@0.5+6,liar=flood`: a kind and how often, for liars the name of a lie,
then the second it begins and the seconds it lasts, where those shall not be drawn.
"""

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from random import Random
from typing import Final

from cosine_node.simulation.liars import LATE, LIES
from cosine_protocol.errors import UsageError

MAX_FAULTS: Final = 1000
RANDOM: Final = "random"
_ENTRY: Final = re.compile(r"([a-z-]+)(?:=([a-z0-9_-]+))?(?:@(\d+(?:\.\d+)?))?(?:\+(\d+(?:\.\d+)?))?")


class FaultKind(StrEnum):
    """Everything that can go wrong."""

    KILL_DRAFTER = "kill-drafter"
    KILL_VERIFIER = "kill-verifier"
    KILL_CLIENT = "kill-client"
    RESTART_DRAFTER = "restart-drafter"
    RESTART_VERIFIER = "restart-verifier"
    PARTITION = "partition"
    """Some nodes hear nothing from all others for a while."""
    STALL = "stall"
    """A verifier's pass does not end for a while; its heartbeats go on."""
    SLOW = "slow"
    """A node's passes take several times what it announced."""
    BAD_ROW = "bad-row"
    """A pass of a verifier gives NaN for one request."""
    CORRUPT = "corrupt"
    """A wrong byte arrives from a node."""
    BUSY = "busy"
    """A drafter follows nobody."""
    OVERLOAD = "overload"
    """A verifier takes no request."""
    LIAR = "liar"
    """One more drafter, which lies."""


ON_VERIFIERS: Final = frozenset(
    {FaultKind.KILL_VERIFIER, FaultKind.RESTART_VERIFIER, FaultKind.STALL, FaultKind.BAD_ROW, FaultKind.OVERLOAD}
)
ON_DRAFTERS: Final = frozenset({FaultKind.KILL_DRAFTER, FaultKind.RESTART_DRAFTER, FaultKind.BUSY})
ON_ANY_NODE: Final = frozenset({FaultKind.SLOW, FaultKind.CORRUPT, FaultKind.PARTITION})
HARMLESS: Final = frozenset({FaultKind.SLOW})
"""What a verifier can suffer and still finish."""
LASTS_S: Final = {
    FaultKind.RESTART_DRAFTER: (0.2, 3.0),
    FaultKind.RESTART_VERIFIER: (0.2, 3.0),
    FaultKind.PARTITION: (0.5, 8.0),
    FaultKind.STALL: (0.5, 10.0),
    FaultKind.SLOW: (2.0, 5.0),
}
"""From which durations are drawn; for `SLOW` the factor."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Population:
    """Who can suffer: how many of each there are, and the seconds in which faults begin.

    Nodes are counted verifiers first. The last verifier is spared as long as a plan can do without it.
    """

    verifiers: int
    drafters: int
    clients: int
    horizon_s: float

    @property
    def spare(self) -> int:
        return self.verifiers - 1

    def victims(self, kind: FaultKind) -> list[int]:
        """Numbers of those whom a kind can befall; the spare verifier only if there is nobody else."""
        verifiers = list(range(self.verifiers))
        drafters = list(range(self.verifiers, self.verifiers + self.drafters))
        if kind is FaultKind.KILL_CLIENT:
            return list(range(self.clients))
        if kind in ON_DRAFTERS:
            return drafters
        spared = [number for number in verifiers if number != self.spare]
        return (spared if kind in ON_VERIFIERS else spared + drafters) or verifiers


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One event: whom it befalls (`Population` numbers; clients have their own), when, and for how long.

    `lasts_s` is the factor of a `SLOW` node. `lie` names what a liar says.
    """

    kind: FaultKind
    victims: tuple[int, ...] = ()
    at_s: float = 0.0
    lasts_s: float = 0.0
    lie: str = ""


@dataclass(frozen=True, slots=True)
class FaultPlan:
    """All that goes wrong in one run, in order of time."""

    faults: tuple[Fault, ...] = ()

    def of(self, *kinds: FaultKind) -> tuple[Fault, ...]:
        return tuple(fault for fault in self.faults if fault.kind in kinds)

    def befalls(self, kind: FaultKind, victim: int) -> bool:
        return any(victim in fault.victims for fault in self.of(kind))

    def spares(self, node: int) -> bool:
        """Whether a node stays able to work all the time."""
        return not any(
            node in fault.victims
            for fault in self.faults
            if fault.kind not in HARMLESS | {FaultKind.KILL_CLIENT, FaultKind.LIAR}
        )

    @property
    def lies(self) -> tuple[str, ...]:
        return tuple(fault.lie for fault in self.of(FaultKind.LIAR))

    @property
    def ends_s(self) -> float:
        """When the last fault is over."""
        return max((fault.at_s + fault.lasts_s for fault in self.faults), default=0.0)

    def counts(self) -> dict[str, int]:
        """How many faults of each kind there are."""
        return dict(sorted(Counter(fault.kind.value for fault in self.faults).items()))


def plan_faults(spec: str, *, rng: Random, population: Population) -> FaultPlan:
    """The plan a SPEC asks for; `random` draws one. Raises `UsageError`."""
    if spec == RANDOM:
        return _in_order(draw_faults(rng, population))
    return _in_order(_read(spec, rng, population))


def check_spec(spec: str) -> None:
    """Raises `UsageError` for what is no SPEC."""
    population = Population(verifiers=1, drafters=1, clients=1, horizon_s=1.0)
    if spec != RANDOM:
        list(_read(spec, Random(0), population, is_strict=False))


def draw_faults(rng: Random, population: Population) -> Iterator[Fault]:
    """Up to five faults of any kind; about one verifier in ten plans has nobody to stand in for it."""
    kinds = [kind for kind in FaultKind if population.victims(kind) or kind is FaultKind.LIAR]
    for kind in rng.choices(kinds, k=rng.choice((0, 0, 1, 1, 2, 2, 3, 4, 5))):
        is_the_spares = kind in ON_VERIFIERS and population.victims(kind) == [population.spare]
        if not is_the_spares or rng.random() < 0.1:
            yield _fault(kind, rng, population, lie=rng.choice(LIE_NAMES))


LIE_NAMES: Final = (*LIES, LATE)


def _in_order(faults: Iterator[Fault]) -> FaultPlan:
    return FaultPlan(tuple(sorted(faults, key=lambda fault: fault.at_s)))


def _read(spec: str, rng: Random, population: Population, *, is_strict: bool = True) -> Iterator[Fault]:
    taken: Counter[tuple[FaultKind, int]] = Counter()
    for entry in (part.strip() for part in spec.split(",") if part.strip()):
        match = _ENTRY.fullmatch(entry)
        if match is None or match[1] not in list(FaultKind):
            raise UsageError(f"{entry!r} is no fault; write KIND=COUNT with a KIND of {', '.join(FaultKind)}.")
        kind, what = FaultKind(match[1]), match[2] or "1"
        at_s, lasts_s = (None if part is None else float(part) for part in (match[3], match[4]))
        count, lie = (1, _lie(what)) if kind is FaultKind.LIAR else (_count(what, entry), "")
        if is_strict and kind is not FaultKind.LIAR and not population.victims(kind):
            raise UsageError(f"Nobody in this swarm can suffer {kind!s}.")
        for _ in range(count):
            fault = _fault(kind, rng, population, lie=lie, taken=taken)
            yield Fault(
                kind=kind,
                victims=fault.victims,
                at_s=fault.at_s if at_s is None else at_s,
                lasts_s=fault.lasts_s if lasts_s is None else lasts_s,
                lie=lie,
            )


def _count(text: str, entry: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= MAX_FAULTS:
        raise UsageError(f"{entry!r} does not say how often, from 1 to {MAX_FAULTS} times.")
    return int(text)


def _lie(text: str) -> str:
    name = text.replace("-", "_")
    if name not in LIE_NAMES:
        raise UsageError(f"There is no lie {text!r}; choose one of {', '.join(LIE_NAMES)}.")
    return name


def _fault(
    kind: FaultKind,
    rng: Random,
    population: Population,
    *,
    lie: str,
    taken: Counter[tuple[FaultKind, int]] | None = None,
) -> Fault:
    at_s = rng.uniform(0, population.horizon_s)
    lasts_s = rng.uniform(*LASTS_S[kind]) if kind in LASTS_S else 0.0
    if kind is FaultKind.LIAR:
        return Fault(kind=kind, lie=lie)
    victims = population.victims(kind)
    chosen = _victims(kind, victims, population, rng, Counter() if taken is None else taken)
    return Fault(kind=kind, victims=chosen, at_s=at_s, lasts_s=lasts_s)


def _victims(
    kind: FaultKind,
    victims: Sequence[int],
    population: Population,
    rng: Random,
    taken: Counter[tuple[FaultKind, int]],
) -> tuple[int, ...]:
    """Whom a fault befalls: one who has not suffered it yet; then the spare verifier; then anybody again."""
    if not victims:
        return ()
    if kind is FaultKind.PARTITION:
        return tuple(sorted(rng.sample(victims, rng.randint(1, len(victims)))))
    fresh = [victim for victim in victims if not taken[kind, victim]]
    if not fresh and kind in ON_VERIFIERS and not taken[kind, population.spare]:
        fresh = [population.spare]
    victim = rng.choice(fresh or victims)
    taken[kind, victim] += 1
    return (victim,)
