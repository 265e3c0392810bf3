"""A cache of transformers that begins with keys and values from the KV pool, and with a recurrent state if any.

Models read and extend it as any other; what they add is written to the pool once their forward has ended.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import Tensor
from transformers.cache_utils import (
    Cache,
    DummyLayer,
    DynamicCache,
    DynamicLayer,
    DynamicSlidingWindowLayer,
    LinearAttentionAndFullAttentionLayer,
    LinearAttentionAndSlidingWindowAttentionLayer,
    LinearAttentionLayer,
)

from cosine_node.engine.kv_store import KvStore
from cosine_node.engine.path_batch import PathBatch
from cosine_node.engine.support import UnsupportedModel

KV_LAYERS: Final = (DynamicLayer, DynamicSlidingWindowLayer)
HYBRID_LAYERS: Final = (LinearAttentionAndFullAttentionLayer, LinearAttentionAndSlidingWindowAttentionLayer)
"""The layers of transformers' caches that keep keys and values, alone or beside a recurrent state."""
STATE_FIELDS: Final = (
    "conv_states",
    "recurrent_states",
    "is_conv_states_initialized",
    "is_recurrent_states_initialized",
    "has_previous_state",
    "conv_kernel_size",
)
"""The attributes that transformers' linear attention layers keep their state in, each by the state's number."""

LayerState = dict[str, dict[int, Any]]
"""The attributes of one layer, each by the number of the state."""
ModelState = dict[int, LayerState]
"""The state of each layer that has one, by its index; tensors have one row."""


@dataclass(frozen=True, slots=True)
class LayerKind:
    """The cache that transformers has for a layer; `states` is the number of its recurrent states."""

    has_keys: bool
    is_sliding: bool
    states: int


def layer_kinds(config: Any) -> list[LayerKind]:
    """The kind of each layer of a model. Raises `UnsupportedModel` for one that is not known here."""
    kinds = []
    for layer in DynamicCache(config=config).layers:
        if type(layer) not in (*KV_LAYERS, *HYBRID_LAYERS, LinearAttentionLayer, DummyLayer):
            raise UnsupportedModel(config.model_type, f"its cache has layers of the kind {type(layer).__name__}")
        has_keys = isinstance(layer, DynamicLayer)
        states = layer.number_of_states if isinstance(layer, LinearAttentionLayer) else 0
        kinds.append(LayerKind(has_keys, bool(getattr(layer, "is_sliding", False)), states))
    return kinds


@dataclass(frozen=True, slots=True)
class Past:
    """The slots [tokens] in the pool of what so many paths all begin with; `check` may raise `PassAbandoned`."""

    slots: Tensor
    paths: int
    store: KvStore
    check: Callable[[], None]


class GatheredLayer(DynamicLayer):  # type: ignore[misc]  # transformers has no types
    """Keys and values of one layer: those in the pool first, for every path the same, then what the model adds.

    A sliding window is left to the model's mask: no key is dropped.
    """

    is_initialized: bool

    def __init__(self, index: int, past: Past) -> None:
        super().__init__()
        self._index = index
        self._past = past
        self._seen_tokens = len(past.slots)

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """Keys and values [paths, heads, tokens, width] of the past and of all that was added, these included."""
        del args, kwargs
        past = self._past
        past.check()
        if not self.is_initialized:
            self.keys, self.values = (
                stored.transpose(1, 2)[0].index_select(0, past.slots).transpose(0, 1).expand(past.paths, -1, -1, -1)
                for stored in past.store.layer(self._index, key_states, value_states)
            )
            self.is_initialized = True
        self.keys = torch.cat([self.keys, key_states], 2)
        self.values = torch.cat([self.values, value_states], 2)
        self._seen_tokens = self.keys.shape[2]
        return self.keys, self.values

    def get_seq_length(self) -> int:
        return self._seen_tokens

    def write(self, slots: Tensor, paths: Tensor, tokens: Tensor) -> None:
        """Write tokens to slots of the pool, by the numbers of their paths and their own after the past."""
        if not self.is_initialized:
            return
        pages = self._past.store.layer(self._index, self.keys, self.values)
        for stored, added in zip(pages, (self.keys, self.values), strict=True):
            rows = added[paths, :, len(self._past.slots) + tokens]
            stored.index_copy_(2, slots, rows.transpose(0, 1)[None])


class GatheredHybridLayer(LinearAttentionLayer, GatheredLayer):  # type: ignore[misc]  # transformers has no types
    """A layer with a recurrent state beside its keys and values."""

    is_compileable = False

    def __init__(self, index: int, past: Past, number_of_states: int) -> None:
        GatheredLayer.__init__(self, index, past)
        LinearAttentionLayer.__init__(self, number_of_states=number_of_states)


class GatheredCache(Cache):  # type: ignore[misc]  # transformers has no types
    """The cache of one forward of a batch of paths, from the keys, values and state of their past."""

    def __init__(self, kinds: Sequence[LayerKind], past: Past, state: ModelState | None) -> None:
        layers: list[Any] = []
        for index, kind in enumerate(kinds):
            if kind.has_keys and kind.states:
                layers.append(GatheredHybridLayer(index, past, kind.states))
            elif kind.has_keys:
                layers.append(GatheredLayer(index, past))
            elif kind.states:
                layers.append(LinearAttentionLayer(number_of_states=kind.states))
            else:
                layers.append(DummyLayer())
            # Models look for the first layer of each kind of mask.
            layers[-1].is_sliding = kind.is_sliding
            if state is not None and index in state:
                _restore(layers[-1], state[index], rows=past.paths)
        super().__init__(layers=layers)
        self._past = past

    def write(self, batch: PathBatch) -> None:
        """Write the keys and values of the row's own tokens to their slots."""
        places = list(batch.places().values())
        if not places:
            return
        device = self._past.slots.device
        slots = torch.tensor(batch.slots(), dtype=torch.int64, device=device)
        paths, tokens = torch.tensor(places, dtype=torch.int64, device=device).unbind(1)
        for layer in self.layers:
            if isinstance(layer, GatheredLayer):
                layer.write(slots, paths, tokens)

    def state(self) -> ModelState:
        """A copy of the state after all that was added."""
        return {
            index: {name: _each(getattr(layer, name), torch.clone) for name in STATE_FIELDS}
            for index, layer in enumerate(self.layers)
            if isinstance(layer, LinearAttentionLayer)
        }


def state_bytes(state: ModelState) -> int:
    """Memory of a state."""
    return sum(
        value.nbytes
        for layer in state.values()
        for values in layer.values()
        for value in values.values()
        if isinstance(value, Tensor)
    )


def _restore(layer: LinearAttentionLayer, state: LayerState, *, rows: int) -> None:
    """Give a layer a copy of a state for each of so many paths: models change it in place."""
    for name, values in state.items():
        setattr(layer, name, _each(values, lambda value: value.repeat(rows, *(1,) * (value.dim() - 1))))
    tensors = [value for values in state.values() for value in values.values() if isinstance(value, Tensor)]
    if tensors:
        layer.device, layer.dtype = tensors[0].device, tensors[0].dtype


def _each(values: dict[int, Any], change: Callable[[Tensor], Tensor]) -> dict[int, Any]:
    return {number: change(value) if isinstance(value, Tensor) else value for number, value in values.items()}
