"""The decoder of Llama-like models with converted weights, as one kernel for a pass."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import Tensor, nn

from cosine_node.engine.blocks.held_linear import HeldLinear
from cosine_node.engine.compiled.paths import Paths
from cosine_node.engine.forward.flat_decoder import is_known, layers_of, projections, window_of
from cosine_node.engine.forward.kv_store import KvStore
from cosine_node.engine.forward.partial_model import AbsentOutput
from cosine_node.engine.kernels.attention import attention_room
from cosine_node.engine.kernels.compilation import Integers
from cosine_node.engine.kernels.crew import run, threads_for
from cosine_node.engine.kernels.passes import Layers, Pass, Shape, run_layers
from cosine_node.engine.kernels.products import inputs_of


@dataclass(frozen=True, slots=True)
class CompiledPass:
    """The inputs of a pass: token ids and positions [1, tokens], the tokens' slots, and their paths."""

    input_ids: Tensor
    position_ids: Tensor
    slots: Integers
    paths: Paths
    store: KvStore
    stop: Integers
    """Two numbers: not 0 to stop before the next layer, and room."""
    check: Callable[[], None]
    """Raises `PassAbandoned` if the pass was stopped."""


class CompiledDecoder:
    """Maps tokens to logits; for a part of a model, from or to activations between layers.

    A token's result depends bit for bit only on its own path.
    """

    def __init__(self, model: Any) -> None:
        """Wrap a model that `is_compilable`."""
        body = model.model
        self._embed, self._rotary, self._model = body.embed_tokens, body.rotary_emb, model
        layers = layers_of(model)
        attention = layers[0].self_attn
        width: int = attention.head_dim
        self._shape = Shape(
            hidden=model.config.hidden_size,
            wide=layers[0].mlp.gate_proj.out_features,
            query_heads=attention.q_proj.out_features // width,
            key_heads=attention.k_proj.out_features // width,
            width=width,
            scale=np.float32(attention.scaling),
            eps=np.float32(layers[0].input_layernorm.variance_epsilon),
        )
        self._indices = [layer.self_attn.layer_idx for layer in layers]
        windows = [window_of(layer.self_attn) for layer in layers]
        self._windows = list(dict.fromkeys(windows))
        output = None if isinstance(model.lm_head, AbsentOutput) else model.lm_head
        self._vocab_tokens = 0 if output is None else output.out_features
        matrices: list[list[Any]] = [each for layer in layers for each in _matrices(layer)]
        matrices += [[] if output is None else [output], *([[]] * 4)]
        parts = [[_entry(linear) for linear in matrix] for matrix in matrices]
        ends = np.cumsum([len(each) for each in parts])
        bounds = np.stack([np.concatenate([[0], ends[:-1]]), ends], 1)
        norms = [
            (layer.input_layernorm, layer.post_attention_layernorm, *_head_norms(layer.self_attn))
            for layer in layers
        ]
        last = (None if output is None else body.norm, None, None, None)
        self._layers = Layers(
            self._shape,
            np.array([[_address(norm) for norm in each] for each in (*norms, last)], np.int64),
            np.array([entry for each in parts for entry in each], np.int64),
            bounds.reshape(-1, 5, 2).astype(np.int64),
            np.array([self._windows.index(window) for window in windows], np.int64),
        )
        self._layer_windows = windows
        self._weights = sum(linear.in_features * linear.out_features for each in matrices for linear in each)
        self._pages: WeakKeyDictionary[KvStore, tuple[Integers, Integers]] = WeakKeyDictionary()

    def __call__(
        self,
        given: CompiledPass,
        wanted: Sequence[int],
        entering: Tensor | None = None,
        seen: dict[int, Tensor] | None = None,
    ) -> Tensor:
        """Return logits [wanted, vocab] at some positions of a pass.

        Activations `entering` [tokens, hidden] replace the embedding. Without an output layer, the output of the
        last layer is returned instead of logits. The keys of `seen` are layer numbers: the input of each layer
        [tokens, hidden] is stored there; the number after the last layer means its output.
        """
        shape = self._shape
        embedded = self._embed(given.input_ids)[0] if entering is None else entering
        tokens, seen = len(embedded), {} if seen is None else seen
        x = np.empty((2, tokens, shape.hidden), np.float32)
        x[0] = embedded.numpy()
        angles = torch.cat(self._rotary(embedded, given.position_ids)).numpy()
        places = [
            (
                given.slots if window is None else given.store.window_slots(given.slots),
                given.paths.within(window, given.store),
            )
            for window in self._windows
        ]
        kept = np.full(len(self._indices) + 1, -1)
        kept[list(seen)] = range(len(seen))
        features = np.empty((len(seen), tokens, shape.hidden), np.float32)
        outputs = np.empty(tokens * (shape.hidden + max(2 * shape.wide, _columns(shape))), np.float32)
        # What the first layer adds to the embedding.
        outputs[: tokens * shape.hidden] = 0
        chosen = np.array(wanted if self._vocab_tokens else (), np.int64)
        logits = np.empty((len(chosen), self._vocab_tokens), np.float32)
        pages, page_slots = self._pages_of(given.store)
        threads = threads_for(self._weights, torch.get_num_threads())
        widest = max(shape.hidden, shape.wide, shape.query_heads * shape.width)
        group = shape.query_heads // shape.key_heads
        longest = int(given.paths.count.max())
        arrays = Pass(
            x=x,
            angles=angles,
            slots=np.stack([slots for slots, _ in places]),
            paths=np.stack([paths.slots for _, paths in places]),
            spans=np.stack([np.stack([paths.first, paths.count]) for _, paths in places]),
            pages=pages,
            page_slots=page_slots,
            wanted=chosen,
            kept=kept,
            features=features,
            logits=logits,
            inputs=(inputs_of(max(tokens, len(chosen)), widest), inputs_of(max(tokens, len(chosen)), widest)),
            room=attention_room(threads, group, shape.width, longest),
            outputs=outputs,
            stop=given.stop,
        )
        place = run(run_layers, threads, self._layers, arrays)
        if place < 0:
            given.check()
        for number, layer in enumerate(seen):
            seen[layer] = torch.from_numpy(features[number])
        return torch.from_numpy(logits if self._vocab_tokens else x[place][wanted])

    def _pages_of(self, store: KvStore) -> tuple[Integers, Integers]:
        """Return the addresses [layers, 2] of a pool's keys and values, and the slots of each window."""
        found = self._pages.get(store)
        if found is None:
            # Only shapes are read.
            like = torch.empty(1, self._shape.key_heads, 1, self._shape.width)
            layers = [
                store.layer(index, like, like.clone(), window=window)
                for index, window in zip(self._indices, self._layer_windows, strict=True)
            ]
            slots = {window: pages.keys.shape[2] for window, pages in zip(self._layer_windows, layers, strict=True)}
            found = self._pages[store] = (
                np.array([[pages.keys.data_ptr(), pages.values.data_ptr()] for pages in layers], np.int64),
                np.array([slots[window] for window in self._windows], np.int64),
            )
        return found


def _columns(shape: Shape) -> int:
    """Return the width of queries, keys and values."""
    return (shape.query_heads + 2 * shape.key_heads) * shape.width


def _matrices(layer: Any) -> list[list[Any]]:
    """Return the linear layers of a layer's matrices, as `Layers` has them."""
    attention, mlp = layer.self_attn, layer.mlp
    return [
        [attention.q_proj, attention.k_proj, attention.v_proj],
        [attention.o_proj],
        [mlp.gate_proj],
        [mlp.up_proj],
        [mlp.down_proj],
    ]


def _entry(linear: Any) -> Integers:
    entry: Integers = linear.matrix.entry(linear.bias)
    return entry


def _head_norms(attention: Any) -> tuple[nn.Module | None, nn.Module | None]:
    return getattr(attention, "q_norm", None), getattr(attention, "k_norm", None)


def _address(norm: Any) -> int:
    return 0 if norm is None else int(norm.weight.data_ptr())


def is_compilable(model: Any) -> bool:
    """True if a causal LM is in float32 on a CPU, of known layers, and all its products have converted weights."""
    layers = layers_of(model)
    if model.device.type != "cpu" or model.dtype is not torch.float32 or not layers:
        return False
    head = model.lm_head
    has_output = isinstance(head, AbsentOutput) or (isinstance(head, HeldLinear) and head.bias is None)
    return has_output and all(
        is_known(layer) and all(isinstance(each, HeldLinear) for each in projections(layer)) for layer in layers
    )
