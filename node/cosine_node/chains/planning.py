"""Which machines should hold which layers of a model, and how fast passes over them would be. Pure.

Theory of operation: a pass of few tokens reads every weight once, of a mixture those of the experts that some token
is sent to, so a machine needs as long for its layers as its memory needs to give them. Then the activations travel
on: the way of a pass is half a round trip for each machine that takes part. So a machine that joins brings memory
and, where it reads fast, time; and it costs its part of the way. `make_plan` finds the layers of each machine, none
for some, with which a pass of one token takes least, among all ways to share them out that fit (a dynamic program
over machines and layers: both sums grow machine by machine).

Machines come in the order in which they were named, but for the two that hold embedding and output layer, which
are chosen by where these fit and are read fastest. Layers count as large as the largest of them where they must
fit, and as the mean where they are read.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from cosine_node.stages.part_sizes import PartSizes, size_text
from cosine_protocol.errors import UsageError
from cosine_protocol.stage_messages import LayerRange

MAX_MACHINES: Final = 64
"""Bounds the time of a plan to seconds."""
DRAFT_TOKENS: Final = 8
"""The length of a path of drafts in a pass, about what verifiers feed where a pass takes long."""


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
    """What a model takes: its weights, a token's keys and values in one layer, a token's activations on the wire.

    There is to be room for `pool_tokens` of all requests together.
    """

    sizes: PartSizes
    layer_token_bytes: int
    activation_bytes: int
    pool_tokens: int

    def read_bytes(self, count: int, *, is_last: bool, tokens: int = 1) -> float:
        """What a pass of so many tokens reads of a part with so many layers; of the embedding it reads rows."""
        sizes = self.sizes
        layers_bytes = count * sizes.read_layers_bytes(tokens) / sizes.layers
        return layers_bytes + sizes.common_bytes + is_last * sizes.output_bytes

    def bytes_of(self, part: LayerRange) -> int:
        """What a part takes with its cache."""
        return self.sizes.of(part) + len(part) * self.layer_token_bytes * self.pool_tokens


def drafted_tokens(acceptance_rate: float) -> float:
    """The tokens of a pass where each drafted one comes true with this chance."""
    return sum(acceptance_rate**depth for depth in range(DRAFT_TOKENS + 1))


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedStage:
    """A machine with its layers, and the memory that these and the pool take.

    `pass_s` is the time of a pass of one token, `draft_pass_s` of one with a path of drafts.
    """

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
        """The time that a pass is on its way between machines."""
        return sum(stage.machine.rtt_s / 2 for stage in self.stages)

    @property
    def traversal_s(self) -> float:
        """The time of a pass of one token through all stages and back to the head."""
        return self.way_s + sum(stage.pass_s for stage in self.stages)

    @property
    def tokens_per_s(self) -> float:
        """The speed of one text, one pass after the other."""
        return 1.0 / self.traversal_s

    def drafted_tokens_per_s(self, acceptance_rate: float) -> float:
        """The same where passes have drafts, each of which comes true with this chance."""
        return drafted_tokens(acceptance_rate) / (self.way_s + sum(stage.draft_pass_s for stage in self.stages))

    def prompt_s(self, tokens: int) -> float:
        """The time that a prompt's activations take over the slowest uplink between two stages."""
        slowest = min((stage.machine.up_bits_per_s for stage in self.stages[:-1]), default=math.inf)
        return 8 * self.activation_bytes * tokens / slowest


@dataclass(frozen=True, slots=True)
class _Share:
    """How machines up to one have shared out layers: the time, and for each its layers and the ends it holds."""

    seconds: float
    longest_s: float
    counts: tuple[tuple[int, bool, bool], ...]

    @property
    def rank(self) -> tuple[float, float]:
        """The less, the better: of two that take as long, the one whose parts are alike serves more at once."""
        return round(self.seconds, 9), self.longest_s


def make_plan(machines: Sequence[Machine], needs: ModelNeeds) -> Plan:
    """The plan whose passes take least. Raises `UsageError` where the model does not fit."""
    if not 1 <= len(machines) <= MAX_MACHINES:
        raise UsageError(f"A plan is made for 1 to {MAX_MACHINES} machines, not {len(machines)}.")
    layers = needs.sizes.layers
    # By the layers shared out so far, and whether somebody has the embedding and the output layer.
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
    """What a machine may hold: nothing, or so many layers, with the embedding or the output layer or both."""
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
    """The time that a machine with so many layers adds to a pass."""
    if not count:
        return 0.0
    return machine.rtt_s / 2 + needs.read_bytes(count, is_last=is_last) / machine.read_bytes_per_s


def _stages(machines: Sequence[Machine], needs: ModelNeeds, share: _Share) -> list[PlannedStage]:
    held = [(machine, *counts) for machine, counts in zip(machines, share.counts, strict=True) if counts[0]]
    # The first has the embedding, the last one the output layer; between them they stay as they were named.
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
    """Why a model does not fit."""
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
