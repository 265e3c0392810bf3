"""A part of a transformers model: some of its layers, with placeholders for the others.

The whole model is built without weights, and absent layers are replaced before weights are read. Thus the other
layers keep their indices, and the configuration of these indices.
"""

import functools
from collections import Counter
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import Any, Final, cast

import torch
from torch import Tensor, nn
from transformers.cache_utils import Cache

from cosine_engine.forward.support import UnsupportedModel
from cosine_protocol.stage import LayerRange

PLAIN: Final = (bool, int, float, str, type(None))
"""The attribute types that distinguish layers, and that models read before they call a layer."""
FEW_OF_A_KIND: Final = 2
"""With one layer only, a layer that reads another layer's cache would go unnoticed."""


def copy_out_of_files(model: Any, *, but: Collection[torch.nn.Parameter] = ()) -> None:
    """Copy weights out of mapped files, unless nearly all weights are mapped. `but` will be replaced soon.

    On a CPU, tensors are read as views of a mapping of their file, and the whole mapping stays in memory as long as
    one of them exists. If some were replaced by joined or converted copies, the others are copied as well, so that
    memory holds every weight once.
    """
    leaving = {id(weight) for weight in but}
    weights = [*model.parameters(), *model.buffers()]
    mapped = [
        # Memory that PyTorch itself allocated can be resized.
        weight
        for weight in weights
        if weight.device.type == "cpu" and not weight.untyped_storage().resizable() and id(weight) not in leaving
    ]
    # Copying takes time; 5 % of the weights may be in memory twice.
    if sum(weight.nbytes for weight in mapped) < 0.95 * sum(weight.nbytes for weight in weights):
        for weight in mapped:
            weight.data = weight.data.clone()


class AbsentLayer(nn.Module):
    """Placeholder for an absent layer: the identity, with the layer's plain attributes.

    Models read such attributes, for example the attention type, before they call a layer.
    """

    def __init__(self, layer: nn.Module, index: int) -> None:
        super().__init__()
        vars(self).update({name: value for name, value in vars(layer).items() if isinstance(value, PLAIN)})
        self._index = index

    def forward(self, hidden_states: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        cache = next((each for each in (*args, *kwargs.values()) if isinstance(each, Cache)), None)
        if cache is not None:
            # Masks and positions depend on the length of the first layer's cache.
            nothing = hidden_states.new_zeros(len(hidden_states), 1, hidden_states.shape[1], 1)
            cache.update(nothing, nothing, self._index)
        return hidden_states


class LayerBefore(AbsentLayer):
    """An absent layer before the part. Activations `entering` [tokens, hidden], if given, replace its output."""

    def forward(self, hidden_states: Tensor, *args: Any, entering: Tensor | None = None, **kwargs: Any) -> Tensor:
        passed = super().forward(hidden_states, *args, **kwargs)
        return passed if entering is None else entering[None]


class LayerAfter(AbsentLayer):
    """An absent layer after the part, which stores its last input: the output of the part."""

    _leaving: Tensor | None = None

    def forward(self, hidden_states: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        self._leaving = hidden_states
        return super().forward(hidden_states, *args, **kwargs)

    def take(self) -> Tensor:
        """Return and forget the output of the part in the last pass."""
        leaving, self._leaving = self._leaving, None
        return cast(Tensor, leaving)


class StandInEmbedding(nn.Module):
    """Placeholder for the embedding: distinct activations per token, for the self-test."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self._width = width
        # Carries the dtype and device of the model.
        self.register_buffer("_like", torch.empty(0), persistent=False)

    def forward(self, ids: Tensor) -> Tensor:
        """Return activations [..., width] of token ids, between -1 and 1."""
        turns = torch.arange(1, self._width + 1, device=ids.device) * (ids[..., None] + 1) % (1 << 20)
        # Multiples of the golden angle (in radians) are spread most evenly on a circle.
        return torch.sin(turns.double() ** 1.5 * 2.399963).to(cast(Tensor, self._like))


class AbsentOutput(nn.Identity):
    """Placeholder for the output layer, whose result is not used."""


def decoder_layers(model: Any) -> nn.ModuleList:
    """Return the decoder layers of a causal LM. Raises `UnsupportedModel` if they cannot be identified."""
    count = model.config.get_text_config().num_hidden_layers
    # The vision part of a multimodal model may have as many layers, so the decoder is searched first.
    for place in (model.get_decoder(), model):
        found = [module for module in place.modules() if isinstance(module, nn.ModuleList) and len(module) == count]
        # Lists inside layers, for example of experts, are left out.
        outer = [
            one for one in found if not any(one is not other and one in list(other.modules()) for other in found)
        ]
        if len(outer) == 1:
            return outer[0]
    raise UnsupportedModel(model.config.model_type, "its layers cannot be identified")


def part_class(model_class: Any, layers: LayerRange) -> Any:
    """Return the class of models that have only these layers of a causal LM of class `model_class`.

    Without the last layer, `forward` returns the part's output [1, tokens, hidden] as logits. Without the first
    layer, it takes the part's input [tokens, hidden] as `entering`. The constructor raises `UnsupportedModel`.
    """

    def build(self: Any, *args: Any, **kwargs: Any) -> None:
        model_class.__init__(self, *args, **kwargs)
        _cut(self, layers)

    @functools.wraps(model_class.forward)
    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        output = model_class.forward(self, *args, **kwargs)
        if not layers.is_last:
            output.logits = cast(LayerAfter, decoder_layers(self)[layers.end]).take()
        return output

    # transformers looks up the capabilities of a class by its name and module.
    members = {"__init__": build, "forward": forward, "part": layers, "__module__": model_class.__module__}
    return type(model_class.__name__, (model_class,), members)


def part_of(model: Any) -> LayerRange | None:
    """Return the layers of a model of a `part_class`; None for other models."""
    found = getattr(model, "part", None)
    return found if isinstance(found, LayerRange) else None


@contextmanager
def few_layers(model: Any) -> Iterator[None]:
    """Temporarily keep only the first `FEW_OF_A_KIND` of the layers that differ only in their weights."""
    held = decoder_layers(model)
    counts: Counter[tuple[object, ...]] = Counter()
    left_out = {}
    for index, layer in enumerate(held):
        if not isinstance(layer, AbsentLayer):
            kind = _kind(layer)
            counts[kind] += 1
            if counts[kind] > FEW_OF_A_KIND:
                left_out[index] = layer
    try:
        for index, layer in left_out.items():
            held[index] = AbsentLayer(layer, index)
        yield
    finally:
        for index, layer in left_out.items():
            held[index] = layer


def _kind(layer: nn.Module) -> tuple[object, ...]:
    """Return the layer's structure without its index and the values of its weights."""
    return tuple(
        (
            name,
            type(module),
            tuple((k, repr(v)) for k, v in vars(module).items() if isinstance(v, PLAIN) and k != "layer_idx"),
            tuple(weight.shape for weight in (*module.parameters(recurse=False), *module.buffers(recurse=False))),
        )
        for name, module in layer.named_modules()
    )


def _cut(model: Any, layers: LayerRange) -> None:
    """Replace everything in a whole model except these layers by placeholders."""
    held = decoder_layers(model)
    if getattr(model.config.get_text_config(), "num_kv_shared_layers", 0):
        raise UnsupportedModel(model.config.model_type, "some of its layers share their keys and values")
    if len(held) != layers.layers:
        raise UnsupportedModel(model.config.model_type, f"it has {len(held)} layers, not {layers.layers}")
    for index, layer in enumerate(held):
        if index not in layers:
            held[index] = (LayerBefore if index < layers.first else LayerAfter)(layer, index)
    tied = {*model.all_tied_weights_keys, *model.all_tied_weights_keys.values()}
    embedding, output = model.get_input_embeddings(), model.get_output_embeddings()
    if output is None:
        raise UnsupportedModel(model.config.model_type, "its output layer cannot be identified")
    is_tied = any(model.get_parameter(name) is embedding.weight for name in tied)
    if not layers.is_last:
        model.set_output_embeddings(AbsentOutput())
    # A tied output layer is read under the embedding's name.
    if not layers.is_first and not (layers.is_last and is_tied):
        model.set_input_embeddings(StandInEmbedding(embedding.weight.shape[1]))
    left = model.state_dict().keys()
    model.all_tied_weights_keys = {
        target: source for target, source in model.all_tied_weights_keys.items() if {target, source} <= left
    }
