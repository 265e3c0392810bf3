"""The decoder of Llama-like models as straight-line tensor code, for passes of a few tokens.

In a pass over one token of a small model, PyTorch modules have more overhead than the tensor operations take. This
is the same computation with the same weights: query, key and value projections are one product, as are gate and up;
normalisation and rotation are one call each. `load_self_test` compares it with the model's own modules.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from cosine_engine.context_length import STRETCHED_ROPES
from cosine_engine.forward.attention import AttentionKernel, attend
from cosine_engine.forward.partial_model import AbsentLayer, AbsentOutput, StandInEmbedding, copy_out_of_files
from cosine_engine.forward.pass_plan import DecoderPlan
from cosine_engine.forward.row_tiles import RowKernel

KNOWN_LAYERS: Final = frozenset(
    {"LlamaDecoderLayer", "MistralDecoderLayer", "Qwen2DecoderLayer", "Qwen3DecoderLayer"}
)
"""Layers whose forward was checked to be what `_DecoderLayer` computes; Qwen3 has head norms."""


Rows = Callable[[Tensor], Tensor]
"""A function of each row of a tensor [..., width]."""


def _norm_of(module: Any) -> Rows:
    """Return a module's root mean square normalisation (arXiv 1910.07467) as one call."""
    weight = module.weight.detach()
    return partial(torch.rms_norm, normalized_shape=weight.shape, weight=weight, eps=module.variance_epsilon)


@dataclass(frozen=True, slots=True)
class _Linear:
    """One or several projections of one input as one product; `weight` is [outputs, inputs]."""

    weight: Tensor
    bias: Tensor | None

    @property
    def shape(self) -> tuple[int, ...]:
        """Outputs and inputs."""
        return self.weight.shape

    @classmethod
    def joining(cls, *modules: nn.Linear) -> "_Linear":
        """Join modules; their weights become views of the joined matrix, so that memory holds them once."""
        weights = [module.weight.detach() for module in modules]
        # A model is wrapped for its self-test and again for serving.
        joined = _joined_before(weights)
        if joined is None:
            joined = torch.cat(weights)
            views = torch.split_with_sizes(joined, [len(weight) for weight in weights])
            for module, view in zip(modules, views, strict=True):
                module.weight = nn.Parameter(view, requires_grad=False)
        biases = [module.bias.detach() for module in modules if module.bias is not None]
        return cls(joined, torch.cat(biases) if biases else None)

    def __call__(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight, self.bias)


@dataclass(frozen=True, slots=True)
class _FeedForward:
    """The gated feed-forward of a layer (SwiGLU, arXiv 2002.05202), from [rows, hidden] to the same."""

    gate_and_up: _Linear
    down: _Linear

    def __call__(self, x: Tensor) -> Tensor:
        gate, up = self.gate_and_up(x).chunk(2, -1)
        return self.down(F.silu(gate) * up)


@dataclass(frozen=True, slots=True, kw_only=True)
class _DecoderLayer:
    """One layer with heads of `width` elements and a sliding window of `window` tokens."""

    index: int
    heads: int
    key_heads: int
    width: int
    kernel: AttentionKernel
    window: int | None
    input_norm: Rows
    query_key_value: _Linear
    query_norm: Rows | None
    key_norm: Rows | None
    attention_output: _Linear
    mlp_norm: Rows
    feed_forward: _FeedForward

    @classmethod
    def of(cls, layer: Any) -> "_DecoderLayer":
        attention, mlp = layer.self_attn, layer.mlp
        width: int = attention.head_dim
        return cls(
            index=attention.layer_idx,
            heads=attention.q_proj.out_features // width,
            key_heads=attention.k_proj.out_features // width,
            width=width,
            kernel=AttentionKernel(attention.scaling),
            window=window_of(attention),
            input_norm=_norm_of(layer.input_layernorm),
            query_key_value=_Linear.joining(attention.q_proj, attention.k_proj, attention.v_proj),
            query_norm=_norm_of(attention.q_norm) if hasattr(attention, "q_norm") else None,
            key_norm=_norm_of(attention.k_norm) if hasattr(attention, "k_norm") else None,
            attention_output=_Linear.joining(attention.o_proj),
            mlp_norm=_norm_of(layer.post_attention_layernorm),
            feed_forward=_FeedForward(_Linear.joining(mlp.gate_proj, mlp.up_proj), _Linear.joining(mlp.down_proj)),
        )

    def __call__(self, x: Tensor, cos: Tensor, sin: Tensor, plan: DecoderPlan) -> Tensor:
        """Map [tokens, hidden] to the same. `cos` and `sin`, negated in its first half, are [tokens, 1, width]."""
        x = x + self.attention_output(self._attention(self.query_key_value(self.input_norm(x)), cos, sin, plan))
        return x + self.feed_forward(self.mlp_norm(x))

    def _attention(self, projected: Tensor, cos: Tensor, sin: Tensor, plan: DecoderPlan) -> Tensor:
        heads = projected.view(len(projected), -1, self.width)
        # Queries and keys are adjacent and are rotated together.
        rotated, value = torch.split_with_sizes(heads, (self.heads + self.key_heads, self.key_heads), 1)
        if self.query_norm is not None and self.key_norm is not None:
            query, key = torch.split_with_sizes(rotated, (self.heads, self.key_heads), 1)
            rotated = torch.cat((self.query_norm(query), self.key_norm(key)), 1)
        # Rotary embedding (arXiv 2104.09864) with halves swapped by a roll; the sign is in `sin`.
        rotated = torch.addcmul(rotated * cos, rotated.roll(self.width // 2, -1), sin)
        query, key = torch.split_with_sizes(rotated.transpose(0, 1)[None], (self.heads, self.key_heads), 1)
        return attend(
            plan,
            self.index,
            query=query,
            key=key,
            value=value.transpose(0, 1)[None],
            window=self.window,
            kernel=self.kernel,
        )


@dataclass(slots=True, eq=False)
class FlatDecoder:
    """Maps tokens to logits; for a part of a model, from or to activations between layers. Create it with `of`."""

    _embed: Rows
    _rotary: nn.Module
    _layers: tuple[_DecoderLayer, ...]
    _norm: Rows
    _output: _Linear | None

    @property
    def is_capturable(self) -> bool:
        """True if all passes of a shape are the same operations: no windows, no input-dependent rotation."""
        has_windows = any(layer.window is not None for layer in self._layers)
        return not has_windows and getattr(self._rotary, "rope_type", "default") not in STRETCHED_ROPES

    @classmethod
    def of(cls, model: Any) -> "FlatDecoder | None":
        """Return the decoder of a causal LM, or None if its layers are not supported.

        The model stays usable: its projections become views of the joined ones.
        """
        body: Any = getattr(model, "model", None)
        layers = layers_of(model)
        if not layers or not all(is_known(layer) and all(map(_is_plain, projections(layer))) for layer in layers):
            return None
        embedding, head = body.embed_tokens, model.lm_head
        if type(embedding) not in (nn.Embedding, StandInEmbedding):
            return None
        if not (_is_plain(head) or isinstance(head, AbsentOutput)):
            return None
        # The joined projections are copies.
        joined = [each for layer in layers for each in projections(layer)]
        copy_out_of_files(model, but=[each.weight for each in joined])
        output = None
        if isinstance(head, nn.Linear):
            # Its weight keeps its memory, which is often the embedding's as well.
            output = _Linear(head.weight.detach(), None if head.bias is None else head.bias.detach())
        return cls(
            partial(F.embedding, weight=embedding.weight.detach())
            if type(embedding) is nn.Embedding
            else embedding,
            body.rotary_emb,
            tuple(_DecoderLayer.of(layer) for layer in layers),
            _norm_of(body.norm),
            output,
        )

    def kernels(self) -> list[RowKernel]:
        """Return the products with weights, one of each shape; a feed-forward counts as one."""
        products: dict[tuple[object, ...], RowKernel] = {}
        for layer in self._layers:
            for product in (layer.query_key_value, layer.attention_output):
                products.setdefault(product.shape, RowKernel(product.shape[1], product))
            inner = layer.feed_forward.gate_and_up.shape
            products.setdefault((_FeedForward, *inner), RowKernel(inner[1], layer.feed_forward))
        output = [] if self._output is None else [RowKernel(self._output.shape[1], self._output)]
        return [*products.values(), *output]

    def __call__(
        self,
        plan: DecoderPlan,
        wanted: Tensor | None,
        entering: Tensor | None = None,
        seen: dict[int, Tensor] | None = None,
    ) -> Tensor:
        """Return logits [wanted, vocab] at some positions of a pass. Default: all.

        Activations `entering` [tokens, hidden] replace the embedding. Without an output layer, the output of the
        last layer is returned instead of logits. The keys of `seen` are layer numbers: the input of each layer
        [tokens, hidden] is stored there; the number after the last layer means its output.
        """
        x = self._embed(plan.input_ids[0]) if entering is None else entering
        cos, sin = (angles[0, :, None] for angles in self._rotary(x, plan.position_ids))
        half = sin.shape[-1] // 2
        sin = torch.cat((-sin[..., :half], sin[..., half:]), -1)
        seen = {} if seen is None else seen
        for number, layer in enumerate(self._layers):
            if number in seen:
                seen[number] = x
            x = layer(x, cos, sin, plan)
        if len(self._layers) in seen:
            seen[len(self._layers)] = x
        x = x if wanted is None else x[wanted]
        return x if self._output is None else self._output(self._norm(x))


def _joined_before(weights: Sequence[Tensor]) -> Tensor | None:
    """Return the matrix of which weights [outputs, inputs] are views since an earlier joining, else None."""
    first, outputs = weights[0], sum(len(weight) for weight in weights)
    inputs, offset = first.shape[1], first.storage_offset()
    # Weights in mapped files, whose memory PyTorch cannot resize, are not joined, not even a single one.
    if first.device.type == "cpu" and not first.untyped_storage().resizable():
        return None
    for weight in weights:
        memory = weight.untyped_storage().data_ptr()
        if memory != first.untyped_storage().data_ptr() or weight.stride() != (inputs, 1):
            return None
        if weight.storage_offset() != offset:
            return None
        offset += weight.numel()
    return first.as_strided((outputs, inputs), (inputs, 1))


def layers_of(model: Any) -> list[Any]:
    """Return the present layers of a causal LM; none if they cannot be identified."""
    layers = getattr(getattr(model, "model", None), "layers", ())
    return [layer for layer in layers if not isinstance(layer, AbsentLayer)]


def window_of(attention: Any) -> int | None:
    """Return the sliding window of a layer's attention in tokens, if any."""
    # Only Mistral has its window just in the configuration; other configurations do not describe one layer.
    window = getattr(attention, "sliding_window", getattr(attention.config, "sliding_window", None))
    return window if isinstance(window, int) and window > 0 else None


def is_known(layer: Any) -> bool:
    """True if a layer computes what `_DecoderLayer` does."""
    # transformers has two names for the activation of these layers.
    return type(layer).__name__ in KNOWN_LAYERS and type(layer.mlp.act_fn).__name__ in ("SiLU", "SiLUActivation")


def projections(layer: Any) -> tuple[Any, ...]:
    """Return the linear layers of a known layer."""
    attention, mlp = layer.self_attn, layer.mlp
    return (
        *(attention.q_proj, attention.k_proj, attention.v_proj, attention.o_proj),
        *(mlp.gate_proj, mlp.up_proj, mlp.down_proj),
    )


def _is_plain(projection: Any) -> bool:
    # Quantised weights are other tensor types, which cannot be joined.
    return type(projection) is nn.Linear and type(projection.weight) is nn.Parameter
