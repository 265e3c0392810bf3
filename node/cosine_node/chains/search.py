"""The chain of stages that a pass goes through soonest, and what remains without one of them. Pure.

As Petals routes (Borzunov et al., arXiv 2312.08361, section 3.2), by a shortest path; but a stage serves all of the
layers it announces, so that each begins where the one before ends.
"""

import math
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from types import MappingProxyType
from typing import Final, NamedTuple

from cosine_node.stages.coverage import gaps_sentence, unheld
from cosine_protocol.errors import CosineError
from cosine_protocol.stage_messages import LayerRange

USUAL_RTT_S: Final = 0.05
"""Between machines of one city and of one continent, for peers of which nothing is known."""
LEAST_PASS_S: Final = 1e-6
"""No pass takes less, as times are divided by it."""

Rtt = Callable[[str, str], float | None]
"""The round-trip time in seconds between two peers as far as known."""


class NoChain(CosineError):
    """No stages hold all layers in order. The text is one sentence that names those that nobody holds."""


@dataclass(frozen=True, slots=True)
class StagePlace:
    """A stage that a head knows of: its peer, the layers it holds, where it may be dialled."""

    peer_id: str
    layers: LayerRange
    addresses: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"Layers {self.layers} at {self.peer_id}"


@dataclass(frozen=True, slots=True)
class StageSight:
    """A stage as a head knows it: where it is, and the seconds that a pass takes there under its load."""

    place: StagePlace
    pass_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundChain:
    """Stages in order, and the seconds of a traversal from the head over them and back to it."""

    stages: tuple[StageSight, ...]
    seconds: float

    @property
    def peer_ids(self) -> tuple[str, ...]:
        return tuple(one.place.peer_id for one in self.stages)


def loaded_pass_s(pass_s: float, *, busy: float) -> float:
    """The time of a pass at a stage that is busy for this share of the time, 0..1: it waits for others' passes.

    At most twice as long, as a record is seconds old; at least `LEAST_PASS_S`, whatever it announces.
    """
    return max(LEAST_PASS_S, pass_s) * (1.0 + min(1.0, max(0.0, busy)))


def chain_ways_s(peer_ids: Sequence[str], *, head: str, rtt_s: Rtt) -> tuple[float, ...]:
    """The expected ways from the head to the first stage, from each to the next, and back to the head."""
    return tuple(_one_way_s(*each, rtt_s) for each in pairwise((head, *peer_ids, head)))


def chain_seconds(stages: Sequence[StageSight], *, head: str, rtt_s: Rtt) -> float:
    """The expected seconds of a traversal from the head over these stages and back to it."""
    ways_s = chain_ways_s([one.place.peer_id for one in stages], head=head, rtt_s=rtt_s)
    return sum(ways_s) + sum(one.pass_s for one in stages)


def _one_way_s(sender: str, receiver: str, rtt_s: Rtt) -> float:
    known_s = 0.0 if sender == receiver else rtt_s(sender, receiver)
    return (USUAL_RTT_S if known_s is None else known_s) / 2


NO_LEVELS: Final[Mapping[str, int]] = MappingProxyType({})


def find_chain(
    stages: Sequence[StageSight],
    *,
    layers: int,
    head: str,
    rtt_s: Rtt,
    avoided: Mapping[str, int] = NO_LEVELS,
    standing: Mapping[str, int] = NO_LEVELS,
    apart: Collection[frozenset[str]] = (),
) -> FoundChain:
    """The chain of least expected time among those of the highest standing. Raises `NoChain`.

    Stages of `avoided` peers, which failed lately or may have, are taken only where it is impossible without, and
    then those that weigh least together. Each level of
    `standing` that a stage has less than the best holder of any of its layers counts more than all time, since
    speed is announced, and belief is not. Pairs that are `apart` never follow each other.
    """

    ordered = sorted(
        (one for one in stages if one.place.layers.layers == layers),
        key=lambda one: (one.place.layers.first, one.place.peer_id),
    )
    behind = [_Behind(avoided.get(one.place.peer_id, 0), _lacking(one, ordered, standing)) for one in ordered]
    found = _shortest(ordered, behind, layers=layers, head=head, rtt_s=rtt_s, apart=apart)
    if found is None:
        raise NoChain(_why_none(stages, layers))
    return found


class _Behind(NamedTuple):
    """What counts more than time: what the avoided stages on a way weigh, and the levels that others have more."""

    avoided: int
    levels: int

    def plus(self, other: "_Behind") -> "_Behind":
        return _Behind(self.avoided + other.avoided, self.levels + other.levels)


def _lacking(one: StageSight, others: Sequence[StageSight], standing: Mapping[str, int]) -> int:
    """The levels that a stage has less than the best that holds any of its layers."""
    if not standing:
        return 0
    rivals = (other.place for other in others if other.place.layers.overlaps(one.place.layers))
    return max(standing.get(rival.peer_id, 0) for rival in rivals) - standing.get(one.place.peer_id, 0)


def _shortest(
    ordered: Sequence[StageSight],
    behind: Sequence[_Behind],
    *,
    layers: int,
    head: str,
    rtt_s: Rtt,
    apart: Collection[frozenset[str]],
) -> FoundChain | None:
    """Dijkstra without a queue: stages lie in order of their first layers, and none leads back."""

    # For each stage the way to its end: what counts more than time, its seconds, and the stage before.
    ways: dict[int, tuple[_Behind, float, int | None]] = {}
    ending: defaultdict[int, list[int]] = defaultdict(list)
    for index, one in enumerate(ordered):
        place = one.place
        if place.layers.is_first:
            ways[index] = (behind[index], _one_way_s(head, place.peer_id, rtt_s) + one.pass_s, None)
        found = [
            (
                ways[other][0].plus(behind[index]),
                ways[other][1] + _one_way_s(sender, place.peer_id, rtt_s) + one.pass_s,
                other,
            )
            for other in ending[place.layers.first]
            for sender in [ordered[other].place.peer_id]
            if frozenset((sender, place.peer_id)) not in apart
        ]
        if found:
            ways[index] = min(found)
        if index in ways:
            ending[place.layers.end].append(index)
    ends = [
        (ways[index][0], ways[index][1] + _one_way_s(ordered[index].place.peer_id, head, rtt_s), index)
        for index in ending[layers]
    ]
    if not ends:
        return None
    _, seconds, last = min(ends)
    chain: list[StageSight] = []
    at: int | None = last
    while at is not None:
        chain.append(ordered[at])
        at = ways[at][2]
    assert math.isfinite(seconds)
    return FoundChain(stages=tuple(reversed(chain)), seconds=seconds)


def _why_none(stages: Sequence[StageSight], layers: int) -> str:
    held = [one.place.layers for one in stages if one.place.layers.layers == layers]
    gaps = unheld(held, layers=layers)
    if gaps:
        return gaps_sentence(gaps)
    reached = {0}
    for one in sorted(held):
        if one.first in reached:
            reached.add(one.end)
    return (
        f"Layers of {layers} are held by stages that do not follow each other: after layers 0:{max(reached)} "
        f"none begins with layer {max(reached)}."
    )
