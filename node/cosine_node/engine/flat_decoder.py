"""The decoder of Llama-like models as straight-line tensor code, for passes of a few tokens.

In a pass over one token of a small model the modules around the tensor code take longer than the tensor code. This
is the same computation with the same weights: query, key and value projections are one product, and so are gate and
up; normalisation and rotation are one call each. The load-time trial (`probe`) compares it with the model's own.
"""

from dataclasses import dataclass
from typing import Any, Final

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from cosine_node.engine.attention import attend
from cosine_node.engine.pass_plan import AttentionPlan, DecoderPlan
from cosine_node.engine.support import STRETCHED_ROPES

KNOWN_LAYERS: Final = frozenset(
    {"LlamaDecoderLayer", "MistralDecoderLayer", "Qwen2DecoderLayer", "Qwen3DecoderLayer"}
)
"""Layers whose forward was read and is what `_Layer` computes; head norms are Qwen3's."""

FEWEST_TURNED: Final = 3
MOST_TURNED: Final = 48
"""So many rows a CPU multiplies faster as columns with a large vocabulary (measured with MKL)."""


@dataclass(frozen=True, slots=True)
class _Norm:
    weight: Tensor
    eps: float
    eps_row: Tensor

    def __call__(self, x: Tensor) -> Tensor:
        if x.is_cuda or x.dtype is not torch.float32:
            return torch.rms_norm(x, self.weight.shape, self.weight, self.eps)
        # Where it has no kernel of its own these four steps are faster than the seven it is made of.
        norm = torch.linalg.vector_norm(x, 2, -1, True)
        return x * torch.rsqrt(torch.addcmul(self.eps_row, norm, norm, value=1 / x.shape[-1])) * self.weight


@dataclass(frozen=True, slots=True)
class _Product:
    """`matrix` is [inputs, outputs]: that way round a product with a single row is faster on a CPU."""

    matrix: Tensor
    bias: Tensor | None

    def __call__(self, x: Tensor) -> Tensor:
        return torch.mm(x, self.matrix) if self.bias is None else torch.addmm(self.bias, x, self.matrix)


@dataclass(frozen=True, slots=True)
class _Head:
    """The output projection, in its own layout: it is far wider than deep, and often the embedding as well."""

    weight: Tensor
    bias: Tensor | None

    def __call__(self, x: Tensor) -> Tensor:
        if x.is_cuda or not FEWEST_TURNED <= len(x) <= MOST_TURNED:
            return F.linear(x, self.weight, self.bias)
        logits = torch.mm(self.weight, x.t()).t().contiguous()
        return logits if self.bias is None else logits + self.bias


@dataclass(frozen=True, slots=True, kw_only=True)
class _Layer:
    """One layer; `width` is that of a head, `window` its sliding window."""

    index: int
    heads: int
    key_heads: int
    width: int
    scale: float
    window: int | None
    before: _Norm
    projection: _Product
    query_norm: _Norm | None
    key_norm: _Norm | None
    output: _Product
    between: _Norm
    gate_and_up: _Product
    down: _Product

    def __call__(self, x: Tensor, cos: Tensor, sin: Tensor, plan: AttentionPlan) -> Tensor:
        """[tokens, hidden] to the same. `cos` and `sin` are [tokens, 1, width], `sin` negated in its first half."""
        x = x + self.output(self._attended(self.projection(self.before(x)), cos, sin, plan))
        gate, up = self.gate_and_up(self.between(x)).chunk(2, -1)
        return x + self.down(F.silu(gate) * up)

    def _attended(self, projected: Tensor, cos: Tensor, sin: Tensor, plan: AttentionPlan) -> Tensor:
        tokens = projected.shape[0]
        heads = projected.view(tokens, -1, self.width)
        turned, value = torch.split_with_sizes(heads, (self.heads + self.key_heads, self.key_heads), 1)
        if self.query_norm is not None and self.key_norm is not None:
            query, key = torch.split_with_sizes(turned, (self.heads, self.key_heads), 1)
            turned = torch.cat((self.query_norm(query), self.key_norm(key)), 1)
        turned = torch.addcmul(turned * cos, turned.roll(self.width // 2, -1), sin)
        query, key = torch.split_with_sizes(turned.transpose(0, 1)[None], (self.heads, self.key_heads), 1)
        return attend(
            plan,
            self.index,
            query=query,
            key=key,
            value=value.transpose(0, 1)[None],
            window=self.window,
            scale=self.scale,
        )


class FlatDecoder:
    """From tokens to logits; make it with `of`."""

    def __init__(
        self, embedding: Tensor, rotation: nn.Module, layers: tuple[_Layer, ...], norm: _Norm, head: _Head
    ) -> None:
        self._embedding = embedding
        self._rotation = rotation
        self._layers = layers
        self._norm = norm
        self._head = head

    @property
    def is_capturable(self) -> bool:
        """Whether all passes of a shape are the same operations: no window, no rotation that looks at its input."""
        has_windows = any(layer.window is not None for layer in self._layers)
        return not has_windows and getattr(self._rotation, "rope_type", "default") not in STRETCHED_ROPES

    @classmethod
    def of(cls, model: Any) -> "FlatDecoder | None":
        """The decoder of a causal LM, or None if it is not known to be one of this kind.

        The model stays usable: its projections become views of the joined ones.
        """
        body: Any = getattr(model, "model", None)
        layers = getattr(body, "layers", None)
        if (
            not layers
            or any(not _is_known(layer) for layer in layers)
            or type(body.embed_tokens) is not nn.Embedding
            or not _is_plain(model.lm_head)
        ):
            return None
        head = model.lm_head
        return cls(
            body.embed_tokens.weight.detach(),
            body.rotary_emb,
            tuple(_flattened(layer) for layer in layers),
            _norm(body.norm),
            _Head(head.weight.detach(), None if head.bias is None else head.bias.detach()),
        )

    def __call__(self, plan: DecoderPlan, wanted: Tensor | None) -> Tensor:
        """Logits [wanted, vocab] of a pass at some of its positions, or at all."""
        x = F.embedding(plan.input_ids[0], self._embedding)
        cos, sin = (part[0, :, None] for part in self._rotation(x, plan.position_ids))
        half = sin.shape[-1] // 2
        sin = torch.cat((-sin[..., :half], sin[..., half:]), -1)
        for layer in self._layers:
            x = layer(x, cos, sin, plan)
        return self._head(self._norm(x if wanted is None else x[wanted]))


def _is_known(layer: Any) -> bool:
    if type(layer).__name__ not in KNOWN_LAYERS or type(layer.mlp.act_fn).__name__ not in (
        "SiLU",
        "SiLUActivation",
    ):
        return False
    attention, mlp = layer.self_attn, layer.mlp
    products = (
        *(attention.q_proj, attention.k_proj, attention.v_proj, attention.o_proj),
        *(mlp.gate_proj, mlp.up_proj, mlp.down_proj),
    )
    return all(_is_plain(product) for product in products)


def _is_plain(product: Any) -> bool:
    # Quantised weights are tensors of a kind of their own, which cannot be joined.
    return type(product) is nn.Linear and type(product.weight) is nn.Parameter


def _flattened(layer: Any) -> _Layer:
    attention, mlp = layer.self_attn, layer.mlp
    width: int = attention.head_dim
    # Mistral's window stands in its configuration only; the others' says nothing about a single layer.
    window = getattr(attention, "sliding_window", getattr(attention.config, "sliding_window", None))
    return _Layer(
        index=attention.layer_idx,
        heads=attention.q_proj.out_features // width,
        key_heads=attention.k_proj.out_features // width,
        width=width,
        scale=attention.scaling,
        window=window if isinstance(window, int) and window > 0 else None,
        before=_norm(layer.input_layernorm),
        projection=_joined(attention.q_proj, attention.k_proj, attention.v_proj),
        query_norm=_norm(attention.q_norm) if hasattr(attention, "q_norm") else None,
        key_norm=_norm(attention.k_norm) if hasattr(attention, "k_norm") else None,
        output=_joined(attention.o_proj),
        between=_norm(layer.post_attention_layernorm),
        gate_and_up=_joined(mlp.gate_proj, mlp.up_proj),
        down=_joined(mlp.down_proj),
    )


def _norm(module: Any) -> _Norm:
    weight, eps = module.weight.detach(), module.variance_epsilon
    return _Norm(weight, eps, weight.new_tensor([eps]))


def _joined(*products: nn.Linear) -> _Product:
    """Several products of one input as one. Their weights become views of its matrix: memory holds them once."""
    matrix = torch.cat([product.weight.detach().t() for product in products], 1).contiguous()
    parts = torch.split_with_sizes(matrix, [product.out_features for product in products], 1)
    for product, part in zip(products, parts, strict=True):
        product.weight = nn.Parameter(part.t(), requires_grad=False)
    biases = [product.bias.detach() for product in products if product.bias is not None]
    return _Product(matrix, torch.cat(biases) if biases else None)
