"""The self-test of deterministic mode: every token's logits must equal bit for bit those of its own path alone.

First the row tiles are measured for the computations whose results can depend on the number of rows: products with
weights, experts and attention. Then the whole model runs the passes of `load_self_test` with these tiles. These
passes cover everything that varies while serving.
"""

from collections.abc import Collection, Iterator
from functools import partial
from typing import Any, Final

import torch
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

from cosine_engine.blocks.experts import is_mixture
from cosine_engine.blocks.held_linear import HeldLinear
from cosine_engine.blocks.matrix import BlockLinear, BlockMatrix
from cosine_engine.forward.attention import AttentionKernel, latent_attention_of
from cosine_engine.forward.packed_model import PackedModel
from cosine_engine.forward.pass_plan import KEY_QUANTUM
from cosine_engine.forward.row_tiles import (
    FIXED_ROWS,
    MOST_ROWS,
    VECTOR,
    Padding,
    RowKernel,
    RowTiles,
    RowTileSet,
    measure_tiles,
)
from cosine_engine.self_test import POOL_TOKENS
from cosine_engine.torch.load_self_test import variant_group
from cosine_protocol.errors import UsageError

TRIED_KEYS: Final = (KEY_QUANTUM, 32, 48, 64, 80, 128, 192, 208, 256, 320, 384, 448, 512, 528, 960, 1040)
"""Numbers of keys that are measured. PyTorch's CPU kernel processes blocks of 512 keys and a smaller last block."""
MOST_ATTENTION_ROWS: Final = 256
"""Maximum number of rows of an attention call that is measured: 64 tokens with four query heads per key head."""


def product_kernels(model: nn.Module) -> list[RowKernel]:
    """Return the products of a model's modules with their weights, one of each type and shape."""
    found: dict[tuple[object, ...], RowKernel] = {}
    for module in model.modules():
        if isinstance(module, nn.Linear | BlockLinear | HeldLinear):
            shape = module.out_features, module.in_features
            found.setdefault((type(module), *shape), RowKernel(module.in_features, module))
        elif isinstance(module, Conv1D):
            found.setdefault((Conv1D, *module.weight.shape), RowKernel(module.weight.shape[0], module))
        elif is_mixture(module):
            for kind, kernel in _expert_kernels(module):
                found.setdefault(kind, kernel)
        elif not isinstance(module, nn.Embedding):
            # The router of a mixture of experts.
            for weight in module.parameters(recurse=False):
                if weight.ndim == 2:
                    found.setdefault(
                        (nn.Module, *weight.shape), RowKernel(weight.shape[1], partial(_times, weight.t()))
                    )
    # All layers with latents have the same shapes.
    latents = next(filter(None, map(latent_attention_of, model.modules())), None)
    return [*found.values(), *(latents.kernels() if latents is not None else ())]


def _expert_kernels(experts: nn.Module) -> Iterator[tuple[tuple[object, ...], RowKernel]]:
    """Yield the products of an expert with its weights, each with its type and shape."""
    for child in experts.children():
        if isinstance(child, BlockMatrix):
            layout = child.layout
            product = partial(child.times, expert=0)
            yield (BlockMatrix, layout.rows, layout.columns), RowKernel(layout.columns, product)
    for weight in experts.parameters(recurse=False):
        if weight.ndim == 3:
            matrix = weight[0] if experts.is_transposed else weight[0].t()
            yield (nn.Parameter, *matrix.shape), RowKernel(matrix.shape[0], partial(_times, matrix))


def _times(matrix: Tensor, rows: Tensor) -> Tensor:
    return torch.mm(rows, matrix)


def attention_tiles(
    shapes: Collection[tuple[int, int, int]], *, dtype: torch.dtype, device: torch.device
) -> RowTiles:
    """Return the row tiles of attention over multiples of `KEY_QUANTUM` keys, in layers of these shapes."""
    kernels = [
        RowKernel(shape[1], partial(_attention, *_random_pages(shape, keys, dtype, device)))
        for shape in shapes
        # Otherwise attention does not use the fused kernel, and has `FIXED_TILES`.
        if shape[1] == shape[2]
        for keys in TRIED_KEYS
    ]
    return measure_tiles(kernels, dtype=dtype, device=device, most_rows=MOST_ATTENTION_ROWS)


def _random_pages(
    shape: tuple[int, int, int], keys: int, dtype: torch.dtype, device: torch.device
) -> tuple[Tensor, Tensor]:
    # As in the pool, all heads of a slot are adjacent.
    heads, *widths = shape
    generator = torch.Generator().manual_seed(1)
    drawn = [torch.randn((1, keys, heads, width), generator=generator) for width in widths]
    found, values = (each.to(device, dtype).transpose(1, 2) for each in drawn)
    return found, values


def _attention(keys: Tensor, values: Tensor, rows: Tensor) -> Tensor:
    """Return attention [rows, heads * width] of rows as queries of all key heads."""
    _, heads, count, width = keys.shape
    bias = rows.new_zeros((1, 1, len(rows), count))
    output = AttentionKernel(width**-0.5)(rows.expand(1, heads, -1, -1), keys, values, bias=bias)
    return output[0].transpose(0, 1).flatten(1)


def find_row_tiles(model: Any) -> RowTileSet:
    """Return the row tiles with which a model is deterministic. Raises `UsageError` if it is not with any."""
    refused = f"--deterministic is not possible for models of type '{model.config.model_type}' on {model.device}"
    with torch.inference_mode():
        tiles = _measured_tiles(model)
        packed = PackedModel(model, slots=POOL_TOKENS, padding=Padding(tiles=tiles))
        group = variant_group(packed)
    if group is not None:
        raise UsageError(f"{refused}: in a self-test {group} gave other logits than alone; drop the option.")
    return tiles


def _measured_tiles(model: Any) -> RowTileSet:
    """Measure the row tiles of a model's computations."""
    packed = PackedModel(model, slots=POOL_TOKENS)
    dtype, device, shapes = model.dtype, packed.device, packed.store.shapes
    kernels = product_kernels(model) if packed.flat is None else packed.flat.kernels()
    # Each expert gets its rows in one tile: large tiles would be mostly padding.
    most_rows = 2 * FIXED_ROWS if any(map(is_mixture, model.modules())) else MOST_ROWS
    products = measure_tiles(kernels, dtype=dtype, device=device, most_rows=most_rows)
    # Other elementwise computations have the width of a head, a router or a gate.
    outputs = [kernel.compute(torch.zeros((1, kernel.width), dtype=dtype, device=device)) for kernel in kernels]
    narrow = {output.shape[1] for output in outputs if output.shape[1] < VECTOR}
    return RowTileSet(
        products=products.in_whole_vectors(narrow | {min(width for _, width, _ in shapes)}),
        attention=attention_tiles(shapes, dtype=dtype, device=device),
    )
