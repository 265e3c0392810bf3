"""The part of a model that fits a machine, among the layers that a swarm lacks most. Pure."""

from collections.abc import Collection
from dataclasses import dataclass

from cosine_node.chains.planning import ModelNeeds
from cosine_node.stages.coverage import lacked_most
from cosine_protocol.stage_messages import LayerRange


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
