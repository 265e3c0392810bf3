"""Multi-head latent attention (DeepSeek-V2, arXiv 2405.04434) over the latents themselves.

Such layers make the keys and values of all heads from one latent of a token and one rotated part of its key. Kept
expanded, those of DeepSeek-V3 take 71 times as much memory. The expansion is linear, so it is applied to queries
and outputs instead ("absorbed"): all heads then share one key, the latent and the rotated part, and as value too.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from cosine_node.engine.row_tiles import RowKernel


class LatentAttention:
    """One such layer of a model: stands in for its method `expand_kv` under the attention called `attention_name`.

    transformers' layers of this kind call that with the latents [1, 1, tokens, rank] and the rotated parts
    [1, 1, tokens, rotated width], and hand what it returns to their attention: here, these as they are.
    """

    def __init__(self, module: Any, attention_name: str) -> None:
        self._module = module
        self._attention_name = attention_name
        self._key_width: int = module.qk_nope_head_dim
        self._rank: int = module.kv_lora_rank
        self._matrix = _matrix(module.kv_b_proj).view(-1, self._key_width + module.v_head_dim, self._rank)

    def __call__(self, kv_nope: Tensor, k_rot: Tensor) -> tuple[Tensor, Tensor]:
        """The key and value states that the layer gives to its attention."""
        if self._module.config._attn_implementation == self._attention_name:
            return kv_nope, k_rot
        expanded: tuple[Tensor, Tensor] = type(self._module).expand_kv(self._module, kv_nope, k_rot)
        return expanded

    def absorbed(self, query: Tensor) -> Tensor:
        """Queries [1, heads, tokens, width] as such of latents, [1, heads, tokens, rank + rotated width]."""
        plain, rotated = query[0, ..., : self._key_width], query[0, ..., self._key_width :]
        return torch.cat((self._key_product(plain), rotated), -1)[None]

    def expanded(self, output: Tensor) -> Tensor:
        """Outputs [tokens, heads * (rank + rotated width)] as [tokens, heads * value width]."""
        heads = len(self._matrix)
        latents = output.view(len(output), heads, -1)[..., : self._rank].transpose(0, 1)
        return self._value_product(latents).transpose(0, 1).flatten(1)

    def kernels(self) -> list[RowKernel]:
        """Its products with weights, each over rows that all heads share."""
        return [
            RowKernel(width, partial(_of_shared_rows, product, len(self._matrix)))
            for width, product in ((self._key_width, self._key_product), (self._rank, self._value_product))
        ]

    def _key_product(self, rows: Tensor) -> Tensor:
        """[heads, rows, plain key width] to [heads, rows, rank]."""
        return torch.bmm(rows, self._matrix[:, : self._key_width])

    def _value_product(self, rows: Tensor) -> Tensor:
        """[heads, rows, rank] to [heads, rows, value width]."""
        return torch.bmm(rows, self._matrix[:, self._key_width :].transpose(1, 2))


def keep_latents(model: nn.Module, attention_name: str) -> None:
    """Let all such layers of a model hand latents to the attention of that name."""
    for module in _expanding(model):
        module.expand_kv = LatentAttention(module, attention_name)


def expand_latents(model: nn.Module) -> None:
    """Undo `keep_latents`."""
    for module in _expanding(model):
        vars(module).pop("expand_kv", None)


def has_latents(model: nn.Module) -> bool:
    """True for a model with such layers."""
    return bool(_expanding(model))


def latent_attention_of(module: nn.Module) -> LatentAttention | None:
    """What stands in for the layer's own method, if anything does."""
    found = vars(module).get("expand_kv")
    return found if isinstance(found, LatentAttention) else None


def latent_kernels(model: nn.Module) -> list[RowKernel]:
    """The products of a model's latents with weights: its layers are alike, so those of one."""
    layers = (latent_attention_of(module) for module in model.modules())
    return next((layer.kernels() for layer in layers if layer is not None), [])


def _expanding(model: nn.Module) -> list[Any]:
    return [
        module
        for module in model.modules()
        if hasattr(type(module), "expand_kv")
        and hasattr(module, "kv_b_proj")
        and getattr(module.kv_b_proj, "bias", None) is None
    ]


def _matrix(projection: Any) -> Tensor:
    """The weights [outputs, inputs] of a projection without bias, of quantised ones a copy in its dtype."""
    if type(projection) is nn.Linear and type(projection.weight) is nn.Parameter:
        return projection.weight.detach()
    weight = projection.weight
    with torch.no_grad():
        columns: Tensor = projection(torch.eye(projection.in_features, dtype=weight.dtype, device=weight.device))
    return columns.t().contiguous()


def _of_shared_rows(product: Callable[[Tensor], Tensor], heads: int, rows: Tensor) -> Tensor:
    """[rows, width] as the rows of every head, to [rows, heads * outputs]."""
    return product(rows.expand(heads, -1, -1)).transpose(0, 1).flatten(1)
