"""The memory that the weights of a part of a model take, known before any is read."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch

from cosine_node.engine.loading import first_line
from cosine_node.engine.partial_model import decoder_layers
from cosine_node.engine.support import model_class_of
from cosine_protocol.errors import UsageError
from cosine_protocol.layer_range import LayerRange


@dataclass(frozen=True, slots=True, kw_only=True)
class PartSizes:
    """Bytes of the weights of a model: of each layer, the embedding, the output layer, and what every part has."""

    layers_bytes: tuple[int, ...]
    embedding_bytes: int
    output_bytes: int
    common_bytes: int

    @property
    def layers(self) -> int:
        return len(self.layers_bytes)

    def of(self, part: LayerRange) -> int:
        """Bytes of a part's weights."""
        ends = self.embedding_bytes * part.is_first + self.output_bytes * part.is_last
        return self.common_bytes + ends + sum(self.layers_bytes[part.first : part.end])


def part_sizes(config: Any, *, dtype: torch.dtype) -> PartSizes:
    """The sizes of a model with this configuration. Raises `UsageError`, also for one that cannot be cut."""
    try:
        with torch.device("meta"):
            model = model_class_of(config)(config)
    except (ValueError, ImportError, RuntimeError) as error:
        raise UsageError(f"No model can be made of this configuration: {first_line(error)}") from error
    # A weight that is shared counts once for each of its places: a part that has one has the whole.
    layers = tuple(_bytes_of(layer.parameters(), dtype) for layer in decoder_layers(model))
    embedding, output = model.get_input_embeddings(), model.get_output_embeddings()
    ends = [_bytes_of([] if end is None else end.parameters(), dtype) for end in (embedding, output)]
    is_tied = output is not None and output.weight is embedding.weight
    whole = _bytes_of(model.parameters(), dtype)
    common = whole - sum(layers) - ends[0] - (0 if is_tied else ends[1])
    return PartSizes(
        layers_bytes=layers, embedding_bytes=ends[0], output_bytes=ends[1], common_bytes=max(0, common)
    )


def _bytes_of(weights: Iterable[torch.Tensor], dtype: torch.dtype) -> int:
    return sum(weight.numel() for weight in weights) * dtype.itemsize
