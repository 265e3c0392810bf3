"""A part of a model of transformers: some of its layers, between what stands in for all others.

The model is built whole, without weights, and layers that the part lacks are replaced before any are read: each of
the others keeps its number, and with it whatever the configuration says of it.
"""

import functools
from collections import Counter
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import Any, Final, cast

import torch
from torch import Tensor, nn
from transformers.cache_utils import Cache

from cosine_node.engine.torch.support import UnsupportedModel
from cosine_protocol.stage_messages import LayerRange

PLAIN: Final = (bool, int, float, str, type(None))
"""The types of attributes that layers are told apart by, and that models read of them before they call them."""
FEW_OF_A_KIND: Final = 2
"""One alone could not be told from one that reads what belongs to another."""


def copy_out_of_files(model: Any, *, but: Collection[torch.nn.Parameter] = ()) -> None:
    """Copy the weights that lie in files, unless nearly all of a model's do; `but` are those soon replaced.

    Read on a CPU, tensors are parts of a mapping of their file, all of which stays in memory as long as one of them
    does. Where copies took the place of some of them, joined or converted, the others are copied as well, so that
    memory holds every weight once.
    """
    leaving = {id(weight) for weight in but}
    weights = [*model.parameters(), *model.buffers()]
    mapped = [
        # Memory that PyTorch has allocated itself can be resized.
        weight
        for weight in weights
        if weight.device.type == "cpu" and not weight.untyped_storage().resizable() and id(weight) not in leaving
    ]
    # Copying takes time, and a small part of the weights may be held twice.
    if sum(weight.nbytes for weight in mapped) < 0.95 * sum(weight.nbytes for weight in weights):
        for weight in mapped:
            weight.data = weight.data.clone()


class AbsentLayer(nn.Module):
    """Stands for a layer that the part lacks: hands on what it gets, and has the layer's plain attributes.

    Models read such attributes (the kind of a layer's attention) before they call it.
    """

    def __init__(self, layer: nn.Module, index: int) -> None:
        super().__init__()
        vars(self).update({name: value for name, value in vars(layer).items() if isinstance(value, PLAIN)})
        self._index = index

    def forward(self, hidden_states: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        cache = next((each for each in (*args, *kwargs.values()) if isinstance(each, Cache)), None)
        if cache is not None:
            # Masks and positions follow the length of the first layer's cache.
            nothing = hidden_states.new_zeros(len(hidden_states), 1, hidden_states.shape[1], 1)
            cache.update(nothing, nothing, self._index)
        return hidden_states


class LayerBefore(AbsentLayer):
    """A layer before the part's: activations `entering` [tokens, hidden], where given, replace its input."""

    def forward(self, hidden_states: Tensor, *args: Any, entering: Tensor | None = None, **kwargs: Any) -> Tensor:
        passed = super().forward(hidden_states, *args, **kwargs)
        return passed if entering is None else entering[None]


class LayerAfter(AbsentLayer):
    """A layer after the part's: remembers what came in last, which is what leaves the part."""

    def __init__(self, layer: nn.Module, index: int) -> None:
        super().__init__(layer, index)
        self._leaving: Tensor | None = None

    def forward(self, hidden_states: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        self._leaving = hidden_states
        return super().forward(hidden_states, *args, **kwargs)

    def take(self) -> Tensor:
        """What left the part in the last pass, once."""
        leaving, self._leaving = self._leaving, None
        return cast(Tensor, leaving)


class StandInEmbedding(nn.Module):
    """Stands for the embedding: in the self-test each token needs activations of its own, any will do."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self._width = width
        # Has the dtype and the device of the model.
        self.register_buffer("_like", torch.empty(0), persistent=False)

    def forward(self, ids: Tensor) -> Tensor:
        """Activations [..., width] of token ids, between -1 and 1."""
        turns = torch.arange(1, self._width + 1, device=ids.device) * (ids[..., None] + 1) % (1 << 20)
        # Multiples of the golden angle, in radians, lie most evenly on a circle.
        return torch.sin(turns.double() ** 1.5 * 2.399963).to(cast(Tensor, self._like))


class AbsentOutput(nn.Identity):
    """Stands for the output layer: hands on what it gets, which nobody reads."""


def decoder_layers(model: Any) -> nn.ModuleList:
    """The layers of a causal LM. Raises `UnsupportedModel` where they cannot be told from its other parts."""
    count = model.config.get_text_config().num_hidden_layers
    # What sees beside a model of texts may have as many layers.
    for place in (model.get_decoder(), model):
        found = [module for module in place.modules() if isinstance(module, nn.ModuleList) and len(module) == count]
        # Lists inside of layers, of experts for example, come after the list of layers that they are in.
        outer = [
            one for one in found if not any(one is not other and one in list(other.modules()) for other in found)
        ]
        if len(outer) == 1:
            return outer[0]
    raise UnsupportedModel(model.config.model_type, "its layers cannot be told from its other parts")


def part_class(model_class: Any, layers: LayerRange) -> Any:
    """The class of models that have only these layers of a causal LM of that class.

    Where the last layer is missing its forward gives what leaves the part, [1, tokens, hidden], as logits; where
    the first is missing it takes what enters, [tokens, hidden], as `entering`. Making one raises
    `UnsupportedModel`.
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

    # transformers looks up what a class can do by its name and its module.
    members = {"__init__": build, "forward": forward, "part": layers, "__module__": model_class.__module__}
    return type(model_class.__name__, (model_class,), members)


def part_of(model: Any) -> LayerRange | None:
    """The layers that a model of a `part_class` has; None for another model."""
    found = getattr(model, "part", None)
    return found if isinstance(found, LayerRange) else None


@contextmanager
def few_layers(model: Any) -> Iterator[None]:
    """Let a model do for a while with the first `FEW_OF_A_KIND` of layers that differ in their weights alone."""
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
    """What a layer is, but for its number and the numbers in its weights."""
    return tuple(
        (
            name,
            type(module),
            tuple((key, repr(value)) for key, value in vars(module).items() if _tells(key, value)),
            tuple(weight.shape for weight in (*module.parameters(recurse=False), *module.buffers(recurse=False))),
        )
        for name, module in layer.named_modules()
    )


def _tells(key: str, value: object) -> bool:
    """True for an attribute that may tell layers of two kinds apart: a plain one, and not the layer's number."""
    return isinstance(value, PLAIN) and key != "layer_idx"


def _cut(model: Any, layers: LayerRange) -> None:
    """Replace what a whole model has besides these layers."""
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
        raise UnsupportedModel(model.config.model_type, "its output layer cannot be told")
    is_tied = any(model.get_parameter(name) is embedding.weight for name in tied)
    if not layers.is_last:
        model.set_output_embeddings(AbsentOutput())
    # An output layer that is the embedding is read under the embedding's name.
    if not layers.is_first and not (layers.is_last and is_tied):
        model.set_input_embeddings(StandInEmbedding(embedding.weight.shape[1]))
    left = model.state_dict().keys()
    model.all_tied_weights_keys = {
        target: source for target, source in model.all_tied_weights_keys.items() if {target, source} <= left
    }
