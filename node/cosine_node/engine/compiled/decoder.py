"""The decoder of Llama-like models in compiled kernels and products with converted weights."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import Tensor

from cosine_node.engine.blocks.held_linear import HeldLinear
from cosine_node.engine.blocks.held_matrix import Floats
from cosine_node.engine.compiled.paths import Paths
from cosine_node.engine.compiled.steps import Norm, Projections, Step, Stepping, stepping
from cosine_node.engine.forward.flat_decoder import is_known, layers_of, projections
from cosine_node.engine.forward.kv_store import KvStore
from cosine_node.engine.forward.partial_model import AbsentOutput
from cosine_node.engine.forward.row_tiles import TRIED_ROWS, RowKernel, RowTiles, measure_tiles
from cosine_node.engine.kernels import LANES, add_norm, attend, norm_heads, rotate_and_store
from cosine_node.engine.kv_pool import Integers

MOST_ROWS: Final = 64
"""Maximum number of rows that a step computes at once if not any number gives the same bits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Attention:
    """The attention of one layer, with `heads` query heads of `width` elements and a window of `window` tokens."""

    index: int
    heads: int
    key_heads: int
    width: int
    scale: np.float32
    window: int | None
    query_norm: Norm | None
    key_norm: Norm | None

    @classmethod
    def of(cls, layer: Any) -> "_Attention":
        attention = layer.self_attn
        width: int = attention.head_dim
        # Only Mistral has its window in the configuration alone; other configurations do not describe one layer.
        window = getattr(attention, "sliding_window", getattr(attention.config, "sliding_window", None))
        has_norms = hasattr(attention, "q_norm")
        return cls(
            index=attention.layer_idx,
            heads=attention.q_proj.out_features // width,
            key_heads=attention.k_proj.out_features // width,
            width=width,
            scale=np.float32(attention.scaling),
            window=window if isinstance(window, int) and window > 0 else None,
            query_norm=Norm.of(attention.q_norm) if has_norms else None,
            key_norm=Norm.of(attention.k_norm) if has_norms else None,
        )

    def allocate(self, store: KvStore) -> tuple[Floats, Floats]:
        """Return the keys and values of the layer in a pool, as `rotate_and_store` has them, on its memory."""
        key = torch.empty(1, self.key_heads, 1, self.width)
        pages = store.layer(self.index, key, key.clone(), window=self.window)
        keys, values = (stored.transpose(1, 2)[0].numpy() for stored in pages)
        # No token takes the spare slot, nor whole pages less.
        whole = len(keys) // LANES
        return keys[: whole * LANES].reshape(whole, self.key_heads, self.width, LANES), values

    def __call__(
        self,
        projected: Floats,
        angles: tuple[Floats, Floats],
        pages: tuple[Floats, Floats],
        slots: Integers,
        paths: Paths,
    ) -> Floats:
        """Return the attention [tokens, heads * width] of queries, keys and values [tokens, any].

        `angles` are the cosines and sines of the rotation [tokens, width].
        """
        tokens = len(projected)
        heads = projected.reshape(tokens, -1, self.width)
        if self.query_norm is not None and self.key_norm is not None:
            last = self.heads + self.key_heads
            norm_heads(heads, 0, self.heads, self.query_norm.weight, self.query_norm.eps)
            norm_heads(heads, self.heads, last, self.key_norm.weight, self.key_norm.eps)
        rotate_and_store(heads, *angles, slots, *pages)
        output = np.empty((tokens, self.heads, self.width), np.float32)
        attend(heads, *pages, paths.slots, paths.first, paths.count, self.scale, output)
        return output.reshape(tokens, -1)


@dataclass(frozen=True, slots=True)
class CompiledPass:
    """The inputs of a pass: token ids and positions [1, tokens], the tokens' slots, and their paths."""

    input_ids: Tensor
    position_ids: Tensor
    slots: Integers
    paths: Paths
    store: KvStore
    check: Callable[[], None]
    """May raise `PassAbandoned`; called before each layer."""


class CompiledDecoder:
    """Maps tokens to logits; for a part of a model, from or to activations between layers.

    A token's result depends bit for bit only on its own path. Construction measures the numbers of rows at which
    the products allow this.
    """

    def __init__(self, model: Any) -> None:
        """Wrap a model that `is_compilable`."""
        body, layers = model.model, layers_of(model)
        self._embed, self._rotary, self._norm = body.embed_tokens, body.rotary_emb, Norm.of(body.norm)
        self._attentions = [_Attention.of(layer) for layer in layers]
        steps = [
            Step(None if after is None else _after(after), None if before is None else _before(before))
            for after, before in zip((None, *layers), (*layers, None), strict=True)
        ]
        # A self-test runs the modules as well, which share the weights until they are released.
        is_sample = hasattr(model, "is_sample")
        kinds = [step.kind for step in steps]
        self._steps = [stepping(step, releases=not is_sample) for step in steps]
        self._output = model.lm_head.matrix if isinstance(model.lm_head, HeldLinear) else None
        self._pages: WeakKeyDictionary[KvStore, list[tuple[Floats, Floats]]] = WeakKeyDictionary()
        self._tiles: RowTiles | None = None
        kernels = {kind: self._row_kernel(number) for number, kind in enumerate(kinds)}.values()
        with torch.inference_mode():
            tiles = measure_tiles(kernels, dtype=torch.float32, device=model.device, most_rows=MOST_ROWS)
        # Usually there is no need to cut or pad rows.
        if tiles.sizes != tuple(rows for rows in TRIED_ROWS if rows <= MOST_ROWS):
            self._tiles = tiles

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
        embedded = self._embed(given.input_ids)[0] if entering is None else entering
        cos, sin = (each[0].numpy() for each in self._rotary(embedded, given.position_ids))
        pages = self._pages.get(given.store)
        if pages is None:
            allocated = [attention.allocate(given.store) for attention in self._attentions]
            pages = self._pages[given.store] = allocated
        windows = {attention.window for attention in self._attentions}
        places = {
            window: (
                given.slots if window is None else given.store.window_slots(given.slots),
                given.paths.within(window, given.store),
            )
            for window in windows
        }
        x: Floats = embedded.contiguous().numpy()
        attended, seen = None, {} if seen is None else seen
        for number, step in enumerate(self._steps):
            given.check()
            x, projected = self._in_tiles(step, attended, x)
            if number in seen:
                seen[number] = torch.from_numpy(x)
            if projected is not None:
                attention = self._attentions[number]
                attended = attention(projected, (cos, sin), pages[number], *places[attention.window])
        x = x[wanted]
        return torch.from_numpy(x if self._output is None else self._in_tiles(self._logits, None, x)[0])

    def _logits(self, attended: Floats | None, x: Floats) -> tuple[Floats, None]:
        del attended
        assert self._output is not None
        normed = np.empty_like(x)
        add_norm(x, np.zeros_like(x), self._norm.weight, self._norm.eps, normed)
        return self._output.times(normed), None

    def _in_tiles(self, step: Stepping, attended: Floats | None, x: Floats) -> tuple[Floats, Floats | None]:
        """Compute a step over rows that are cut and padded to the tiles."""
        if self._tiles is None or len(x) in self._tiles.sizes:
            return step(attended, x)
        found, start = [], 0
        for size in self._tiles.cut(len(x)):
            rows = slice(start, start + size)
            found.append(step(None if attended is None else _padded(attended[rows], size), _padded(x[rows], size)))
            start += size
        new, projected = zip(*found, strict=True)
        joined = None if projected[0] is None else np.concatenate(projected)[: len(x)]
        return np.concatenate(new)[: len(x)], joined

    def _row_kernel(self, number: int) -> RowKernel:
        """Return a step, and the output layer in the last one, as a function of rows."""
        step = self._steps[number]
        hidden = len(self._norm.weight)
        is_last = number + 1 == len(self._steps)
        attended_width = (
            0 if not number else self._attentions[number - 1].heads * self._attentions[number - 1].width
        )

        def compute(rows: Tensor) -> Tensor:
            attended, x = (np.ascontiguousarray(part) for part in np.split(rows.numpy(), [attended_width], 1))
            new, projected = step(attended if attended_width else None, x)
            if is_last and self._output is not None:
                projected, _ = self._logits(None, new)
            return torch.from_numpy(new if projected is None else np.concatenate([new, projected], 1))

        return RowKernel(attended_width + hidden, compute)


def _padded(rows: Floats, size: int) -> Floats:
    """Return rows with rows of zeros up to `size`."""
    if len(rows) == size:
        return rows
    return np.concatenate([rows, np.zeros((size - len(rows), rows.shape[1]), np.float32)])


def _after(layer: Any) -> tuple[Projections, Norm, Projections, Projections]:
    mlp = layer.mlp
    attention_output, down = Projections((layer.self_attn.o_proj,)), Projections((mlp.down_proj,))
    norm = Norm.of(layer.post_attention_layernorm)
    return attention_output, norm, Projections((mlp.gate_proj, mlp.up_proj)), down


def _before(layer: Any) -> tuple[Norm, Projections]:
    attention = layer.self_attn
    return Norm.of(layer.input_layernorm), Projections((attention.q_proj, attention.k_proj, attention.v_proj))


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
