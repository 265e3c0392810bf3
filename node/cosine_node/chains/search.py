"""The chain of stages with the least time of a pass. Pure.

Routing is by a shortest path as in Petals (Borzunov et al., arXiv 2312.08361, section 3.2), but a stage serves all
layers that it announces, so each stage begins where the one before ends.
"""

from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from types import MappingProxyType
from typing import Final, Self

from cosine_p2p.directory.coverage import gaps_sentence, unheld
from cosine_protocol.errors import CosineError
from cosine_protocol.records import NodeRecord
from cosine_protocol.stage import LayerRange

USUAL_RTT_S: Final = 0.05
"""Assumed for unknown peers: between that of one city and of one continent."""
LEAST_PASS_S: Final = 1e-6
"""Lower bound of a pass time, since times are divided by it."""

Rtt = Callable[[str, str], float | None]
"""The round-trip time in seconds between two peers, if known."""


class NoChain(CosineError):
    """No stages hold all layers in order. The text is one sentence that names those without a stage."""


@dataclass(frozen=True, slots=True)
class StagePlace:
    """A stage: its peer id and layers, and the seconds that a pass takes there under its load."""

    peer_id: str
    layers: LayerRange
    pass_s: float = 0.0

    @classmethod
    def announced(cls, record: NodeRecord) -> Self:
        """A stage as its record announces it."""
        assert record.stage is not None, "the record of a stage"
        pass_s = loaded_pass_s(record.pass_us / 1e6, busy=record.stage.busy_permille / 1000)
        return cls(record.peer_id, record.stage.held, pass_s)

    def __str__(self) -> str:
        return f"Layers {self.layers} at {self.peer_id}"


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundChain:
    """Stages in order, and the seconds of a traversal from the head and back to it."""

    stages: tuple[StagePlace, ...]
    seconds: float

    @property
    def peer_ids(self) -> tuple[str, ...]:
        return tuple(one.peer_id for one in self.stages)


def loaded_pass_s(pass_s: float, *, busy: float) -> float:
    """The time of a pass at a stage that is busy for this share of the time, 0..1; at least `LEAST_PASS_S`."""
    return max(LEAST_PASS_S, pass_s) * (1.0 + min(1.0, max(0.0, busy)))


def chain_ways_s(peer_ids: Sequence[str], *, head: str, rtt_s: Rtt) -> tuple[float, ...]:
    """The expected one-way times from the head to the first stage, from each to the next, and back to the head."""
    return tuple(_one_way_s(*each, rtt_s) for each in pairwise((head, *peer_ids, head)))


def chain_seconds(stages: Sequence[StagePlace], *, head: str, rtt_s: Rtt) -> float:
    """The expected seconds of a traversal from the head over these stages and back."""
    ways_s = chain_ways_s([one.peer_id for one in stages], head=head, rtt_s=rtt_s)
    return sum(ways_s) + sum(one.pass_s for one in stages)


def _one_way_s(sender: str, receiver: str, rtt_s: Rtt) -> float:
    known_s = 0.0 if sender == receiver else rtt_s(sender, receiver)
    return (USUAL_RTT_S if known_s is None else known_s) / 2


NO_LEVELS: Final[Mapping[str, int]] = MappingProxyType({})


def find_chain(
    stages: Sequence[StagePlace],
    *,
    layers: int,
    head: str,
    rtt_s: Rtt,
    avoided: Mapping[str, int] = NO_LEVELS,
    standing: Mapping[str, int] = NO_LEVELS,
    apart: Collection[frozenset[str]] = (),
) -> FoundChain:
    """The chain of least expected time among those of the highest standing. Raises `NoChain`.

    The total weight of `avoided` peers is minimised first, then the levels of `standing` that stages have less than
    the best holder of any of their layers, then time. Pairs that are `apart` are never neighbours.
    """
    ordered = sorted(
        (one for one in stages if one.layers.layers == layers),
        key=lambda one: (one.layers.first, one.peer_id),
    )
    # For each stage, in topological order, the best path to its end: avoided weight, lacking levels, seconds, and
    # the stages from the last to the first.
    ways: dict[int, tuple[int, int, float, tuple[int, ...]]] = {}
    ending: defaultdict[int, list[int]] = defaultdict(list)
    for index, one in enumerate(ordered):
        peer_id, part = one.peer_id, one.layers
        weight, lacking = avoided.get(peer_id, 0), _lacking(one, ordered, standing)
        before = [(0, 0, 0.0, ())] if part.is_first else [ways[other] for other in ending[part.first]]
        found = [
            (
                avoided_before + weight,
                levels + lacking,
                seconds + _one_way_s(sender, peer_id, rtt_s) + one.pass_s,
                (index, *path),
            )
            for avoided_before, levels, seconds, path in before
            for sender in [ordered[path[0]].peer_id if path else head]
            if frozenset((sender, peer_id)) not in apart
        ]
        if found:
            ways[index] = min(found)
            ending[part.end].append(index)
    ends = [
        (weight, levels, seconds + _one_way_s(ordered[path[0]].peer_id, head, rtt_s), path)
        for weight, levels, seconds, path in map(ways.__getitem__, ending[layers])
    ]
    if not ends:
        raise NoChain(_why_none(stages, layers))
    _, _, seconds, path = min(ends)
    return FoundChain(stages=tuple(ordered[index] for index in reversed(path)), seconds=seconds)


def _lacking(one: StagePlace, others: Sequence[StagePlace], standing: Mapping[str, int]) -> int:
    """The levels that a stage has less than the best holder of any of its layers."""
    if not standing:
        return 0
    rivals = (other for other in others if other.layers.overlaps(one.layers))
    return max(standing.get(rival.peer_id, 0) for rival in rivals) - standing.get(one.peer_id, 0)


def _why_none(stages: Sequence[StagePlace], layers: int) -> str:
    held = [one.layers for one in stages if one.layers.layers == layers]
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
