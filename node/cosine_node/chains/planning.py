"""The memory that parts of a model need, and the assignment of its layers to machines. Pure.

Theory of operation: a pass of few tokens reads every weight once (of a mixture those of the selected experts), so a
machine takes as long as its memory takes to read its layers; each machine adds half a round trip. `make_plan` finds
the assignment that fits and whose one-token pass takes least, by dynamic programming over machines and layers. Some
machines may get no layers.

Machines stay in the given order, except those that hold embedding and output layer, which are chosen by room and
speed. A layer counts as the largest one for room, and as the mean for time.
"""

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Final

from cosine_engine.pool_size import AUTO
from cosine_node.stages.parts import PartSizes, size_text
from cosine_p2p.directory.coverage import lacked_most
from cosine_protocol.errors import UsageError
from cosine_protocol.numerics import DTYPES
from cosine_protocol.records import NodeRecord, Role
from cosine_protocol.stage import LayerRange

MAX_MACHINES: Final = 64
"""Bounds the time of a plan to seconds."""
DRAFT_TOKENS: Final = 8
"""The assumed number of drafted tokens in a pass, about that of verifiers with long passes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """A machine that may hold layers. `rtt_s` is the round-trip time to another one like it."""

    name: str
    memory_bytes: int
    read_bytes_per_s: float
    up_bits_per_s: float
    rtt_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelNeeds:
    """Sizes of a model, of a token's keys and values in one layer, of its activations, and the cached tokens."""

    sizes: PartSizes
    layer_token_bytes: int
    activation_bytes: int
    pool_tokens: int

    def read_bytes(self, count: int, *, is_last: bool, tokens: int = 1) -> float:
        """The bytes that a pass of `tokens` tokens reads of a part with `count` layers."""
        sizes = self.sizes
        layers_bytes = count * sizes.read_layers_bytes(tokens) / sizes.layers
        return layers_bytes + sizes.common_bytes + is_last * sizes.output_bytes

    def bytes_of(self, part: LayerRange) -> int:
        """The bytes of a part with its cache."""
        return self.sizes.of(part) + len(part) * self.layer_token_bytes * self.pool_tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """The layers that a machine should hold as a stage, None if not even one fits, and the sizes with cache."""

    layers: LayerRange | None
    bytes: int
    is_whole: bool
    whole_bytes: int


def fit_of(needs: ModelNeeds, memory_bytes: int, held: Collection[LayerRange]) -> Fit:
    """The fit of a model for `memory_bytes`, given the layers that others hold."""
    layers = needs.sizes.layers
    whole_bytes = needs.bytes_of(LayerRange.whole(layers))
    part = lacked_most(held, layers=layers, fits=lambda one: needs.bytes_of(one) <= memory_bytes)
    return Fit(
        layers=part,
        bytes=0 if part is None else needs.bytes_of(part),
        is_whole=whole_bytes <= memory_bytes,
        whole_bytes=whole_bytes,
    )


def served_dtype(records: Collection[NodeRecord]) -> str:
    """The data type of the weights of a target's verifiers or stages; `AUTO` if none is known."""
    serving = [record for record in records if record.role != Role.DRAFTER]
    return next((record.numerics for record in serving if record.numerics in DTYPES), AUTO)


def drafted_tokens(acceptance_rate: float) -> float:
    """The expected tokens of a pass at an acceptance rate."""
    return sum(acceptance_rate**depth for depth in range(DRAFT_TOKENS + 1))


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedStage:
    """A machine with its layers and memory; `pass_s` is the time of a one-token pass, `draft_pass_s` of drafts."""

    machine: Machine
    layers: LayerRange
    weights_bytes: int
    pool_bytes: int
    pass_s: float
    draft_pass_s: float


@dataclass(frozen=True, slots=True)
class Plan:
    """Stages in the order of their layers."""

    stages: tuple[PlannedStage, ...]
    activation_bytes: int

    @property
    def way_s(self) -> float:
        """The network time of a pass."""
        return sum(stage.machine.rtt_s / 2 for stage in self.stages)

    @property
    def traversal_s(self) -> float:
        """The time of a one-token pass through all stages and back to the head."""
        return self.way_s + sum(stage.pass_s for stage in self.stages)

    @property
    def tokens_per_s(self) -> float:
        """The speed of one text without drafts."""
        return 1.0 / self.traversal_s

    def drafted_tokens_per_s(self, acceptance_rate: float) -> float:
        """The speed of one text with drafts at an acceptance rate."""
        return drafted_tokens(acceptance_rate) / (self.way_s + sum(stage.draft_pass_s for stage in self.stages))

    def prompt_s(self, tokens: int) -> float:
        """The time of a prompt's activations over the slowest uplink between two stages."""
        slowest = min((stage.machine.up_bits_per_s for stage in self.stages[:-1]), default=math.inf)
        return 8 * self.activation_bytes * tokens / slowest


@dataclass(frozen=True, slots=True)
class _Share:
    """A partial assignment: its time, and the layers and ends of each machine so far."""

    seconds: float
    longest_s: float
    counts: tuple[tuple[int, bool, bool], ...]

    @property
    def rank(self) -> tuple[float, float]:
        """The sort key, least is best: of equal times the more balanced one, which serves more requests at once."""
        return round(self.seconds, 9), self.longest_s


def make_plan(machines: Sequence[Machine], needs: ModelNeeds) -> Plan:
    """The plan whose passes take least. Raises `UsageError` if the model does not fit."""
    if not 1 <= len(machines) <= MAX_MACHINES:
        raise UsageError(f"A plan is made for 1 to {MAX_MACHINES} machines, not {len(machines)}.")
    layers = needs.sizes.layers
    # By the number of assigned layers, and whether embedding and output layer are assigned.
    best = {(0, False, False): _Share(0.0, 0.0, ())}
    for machine in machines:
        found: dict[tuple[int, bool, bool], _Share] = {}
        for (held, has_first, has_last), share in best.items():
            for count, is_first, is_last in _choices(machine, needs, most=layers - held):
                if (is_first and has_first) or (is_last and has_last) or (is_first and is_last and count < layers):
                    continue
                state = (held + count, has_first or is_first, has_last or is_last)
                own_s = _seconds(machine, needs, count, is_last=is_last)
                counts = (*share.counts, (count, is_first, is_last))
                longer = _Share(share.seconds + own_s, max(share.longest_s, own_s), counts)
                if state not in found or longer.rank < found[state].rank:
                    found[state] = longer
        best = found
    whole = best.get((layers, True, True))
    if whole is None:
        raise UsageError(_lack(machines, needs))
    return Plan(tuple(_stages(machines, needs, whole)), needs.activation_bytes)


def _choices(machine: Machine, needs: ModelNeeds, *, most: int) -> list[tuple[int, bool, bool]]:
    """The parts that fit a machine: number of layers, with embedding, with output layer."""
    sizes = needs.sizes
    layer_bytes = max(sizes.layers_bytes) + needs.layer_token_bytes * needs.pool_tokens
    found = [(0, False, False)]
    for is_first in (False, True):
        for is_last in (False, True):
            ends = is_first * sizes.embedding_bytes + is_last * sizes.output_bytes
            room = (machine.memory_bytes - sizes.common_bytes - ends) // layer_bytes
            found += [(count, is_first, is_last) for count in range(1, min(most, room) + 1)]
    return found


def _seconds(machine: Machine, needs: ModelNeeds, count: int, *, is_last: bool) -> float:
    """The time that a machine with `count` layers adds to a pass."""
    if not count:
        return 0.0
    return machine.rtt_s / 2 + needs.read_bytes(count, is_last=is_last) / machine.read_bytes_per_s


def _stages(machines: Sequence[Machine], needs: ModelNeeds, share: _Share) -> list[PlannedStage]:
    held = [(machine, *counts) for machine, counts in zip(machines, share.counts, strict=True) if counts[0]]
    # The first holds the embedding, the last the output layer; the others keep the given order.
    held.sort(key=lambda one: (not one[2], one[3]))
    stages, first = [], 0
    for machine, count, _, is_last in held:
        part = LayerRange(first=first, end=first + count, layers=needs.sizes.layers)
        first = part.end
        stages.append(
            PlannedStage(
                machine=machine,
                layers=part,
                weights_bytes=needs.sizes.of(part),
                pool_bytes=needs.layer_token_bytes * needs.pool_tokens * count,
                pass_s=needs.read_bytes(count, is_last=is_last) / machine.read_bytes_per_s,
                draft_pass_s=needs.read_bytes(count, is_last=is_last, tokens=1 + DRAFT_TOKENS)
                / machine.read_bytes_per_s,
            )
        )
    return stages


def _lack(machines: Sequence[Machine], needs: ModelNeeds) -> str:
    """The reason why a model does not fit, as a sentence."""
    sizes = needs.sizes
    pool_bytes = sizes.layers * needs.layer_token_bytes * needs.pool_tokens
    ends_bytes = sizes.embedding_bytes + sizes.output_bytes
    wanted_bytes = sum(sizes.layers_bytes) + ends_bytes + len(machines) * sizes.common_bytes + pool_bytes
    given_bytes = sum(machine.memory_bytes for machine in machines)
    return (
        f"The model does not fit: its weights and the keys and values of {needs.pool_tokens:,} tokens take "
        f"{size_text(wanted_bytes)} in whole layers of {size_text(max(sizes.layers_bytes))}, and the machines have "
        f"{size_text(given_bytes)}; add one, plan for fewer --tokens, or choose another --dtype."
    )
