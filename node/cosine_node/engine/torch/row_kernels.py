"""The computations of a model whose rows can come out differently by their number: products, experts, attention."""

from collections.abc import Iterable
from typing import Any, Final

import torch
from torch import Tensor, nn
from transformers.integrations.moe import ALL_EXPERTS_FUNCTIONS, grouped_mm_experts_forward
from transformers.pytorch_utils import Conv1D

from cosine_node.engine.torch.attention import AttentionKernel, latent_kernels
from cosine_node.engine.torch.pass_plan import KEY_QUANTUM
from cosine_node.engine.torch.row_tiles import RowKernel, RowTiles, measure_tiles

TRIED_KEYS: Final = (16, 496, 1040)
"""Few, nearly one block of PyTorch's kernel on CPUs, of 512 keys, and more than two."""
TRIED_PADDING: Final = (KEY_QUANTUM, 512)
"""The least padding, and so much that it fills another block of that kernel."""
TRIED_SOFTCAP: Final = 50.0
"""That of Gemma 2; any number selects attention step by step."""


def product_kernels(model: nn.Module) -> list[RowKernel]:
    """The products of a model's modules with their weights, one of each kind and shape."""
    found: dict[tuple[object, ...], RowKernel] = {}
    for module in model.modules():
        if isinstance(module, nn.Linear):
            found.setdefault((nn.Linear, *module.weight.shape), RowKernel(module.in_features, module))
        elif isinstance(module, Conv1D):
            found.setdefault((Conv1D, *module.weight.shape), RowKernel(module.weight.shape[0], module))
        elif hasattr(module, "is_transposed"):
            for weight in module.parameters(recurse=False):
                if weight.ndim == 3:
                    matrix = weight[0] if module.is_transposed else weight[0].t()
                    found.setdefault((nn.Parameter, *matrix.shape), RowKernel(matrix.shape[0], _Times(matrix)))
        elif not isinstance(module, nn.Embedding):
            # The router of a mixture of experts.
            for weight in module.parameters(recurse=False):
                if weight.ndim == 2:
                    found.setdefault((nn.Module, *weight.shape), RowKernel(weight.shape[1], _Times(weight.t())))
    return [*found.values(), *latent_kernels(model)]


class _Times:
    """The product of rows with the matrix of one expert."""

    def __init__(self, matrix: Tensor) -> None:
        self._matrix = matrix

    def __call__(self, rows: Tensor) -> Tensor:
        return torch.mm(rows, self._matrix)


def attention_tiles(
    shapes: Iterable[tuple[int, int, int]], *, dtype: torch.dtype, device: torch.device
) -> RowTiles:
    """The row tiles of attention over layers of these numbers of key heads and widths of keys and values."""
    kernels = [
        RowKernel(shape[1], _AttentionOfRows(shape, keys, softcap, dtype, device))
        for shape in shapes
        for keys in TRIED_KEYS
        for softcap in (None, TRIED_SOFTCAP)
    ]
    return measure_tiles(kernels, dtype=dtype, device=device)


def hides_padding(
    shapes: Iterable[tuple[int, int, int]], tiles: RowTiles, *, dtype: torch.dtype, device: torch.device
) -> bool:
    """True if hidden keys at the end change no bit of attention over such layers."""
    for shape in shapes:
        for keys in TRIED_KEYS:
            for softcap in (None, TRIED_SOFTCAP):
                attention = _AttentionOfRows(shape, keys + max(TRIED_PADDING), softcap, dtype, device)
                rows = torch.randn((tiles.limit, shape[1]), generator=torch.Generator().manual_seed(0))
                outputs = [
                    attention(rows.to(device, dtype), seen=keys - hidden, keys=keys + padding)
                    for hidden in (0, 1, KEY_QUANTUM - 1)
                    for padding in (0, *TRIED_PADDING)
                ]
                alike = len(TRIED_PADDING) + 1
                if any(not torch.equal(outputs[i], outputs[i - i % alike]) for i in range(len(outputs))):
                    return False
    return True


class _AttentionOfRows:
    """Rows as queries of all key heads, over random keys and values."""

    def __init__(
        self,
        shape: tuple[int, int, int],
        keys: int,
        softcap: float | None,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        # As in the pool, all heads of a slot come one after the other.
        self._heads, *widths = shape
        generator = torch.Generator().manual_seed(1)
        self._keys, self._values = (
            torch.randn((1, keys, self._heads, width), generator=generator).to(device, dtype).transpose(1, 2)
            for width in widths
        )
        self._kernel = AttentionKernel(widths[0] ** -0.5, softcap)

    def __call__(self, rows: Tensor, *, seen: int | None = None, keys: int | None = None) -> Tensor:
        """Attention over the first `keys`, of which the first `seen` are not hidden; over all without them."""
        pages = self._keys[:, :, :keys], self._values[:, :, :keys]
        bias = rows.new_zeros((1, 1, len(rows), pages[0].shape[2]))
        bias[..., seen:] = 0.0 if seen is None else float("-inf")
        output = self._kernel(rows.expand(1, self._heads, -1, -1), *pages, bias=bias)
        return output[0].transpose(0, 1).flatten(1)


def tile_experts(model: Any, tiles: RowTiles) -> None:
    """Let a mixture of experts pad the rows that come to each expert; other models are left as they are."""

    def experts_in_tiles(
        experts: Any, hidden: Tensor, expert_of: Tensor, weight_of: Tensor, *_: object, **__: object
    ) -> Tensor:
        """[tokens, hidden] to the same; the experts of each token and their weights are [tokens, experts]."""
        tokens, chosen = expert_of.shape
        rows = torch.bincount(expert_of.flatten(), minlength=experts.num_experts)
        padding = torch.arange(len(rows), device=rows.device).repeat_interleave(-rows % tiles.quantum)
        # Each pair of a token and an expert is given as a token with one expert; nobody reads what pads them.
        pairs = hidden.repeat_interleave(chosen, 0)
        padded = torch.cat([pairs, pairs[:1].expand(len(padding), -1)])
        expert_of_pair = torch.cat([expert_of.flatten(), padding.to(expert_of.dtype)])[:, None]
        output = grouped_mm_experts_forward(experts, padded, expert_of_pair, torch.ones_like(padded[:, :1]))
        by_token = output[: len(pairs)].view(tokens, chosen, -1)
        weighted: Tensor = (by_token * weight_of[..., None]).sum(1)
        return weighted.to(hidden.dtype)

    if getattr(model.config.get_text_config(), "_experts_implementation", None) is None:
        return
    name = f"cosine_tiles_of_{tiles.quantum}"
    ALL_EXPERTS_FUNCTIONS.register(name, experts_in_tiles)
    model.set_experts_implementation(name)
