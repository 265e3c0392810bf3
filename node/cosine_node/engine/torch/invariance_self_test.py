"""A self-test for deterministic mode: does every token come out bit for bit as in a pass over its own path alone?

The row tiles of the computations whose rows can come out differently by their number, which are products, experts
and attention, are measured first. Then come the passes of the self-test at load, which differ in all that may
differ while serving, and the whole model as it will serve.
"""

import math
from collections.abc import Iterable
from functools import partial
from typing import Any, Final

import torch
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

from cosine_node.engine.base import Row
from cosine_node.engine.self_test import POOL_TOKENS, Group, SelfTestTexts, Text
from cosine_node.engine.torch.attention import AttentionKernel, latent_attention_of
from cosine_node.engine.torch.load_self_test import SelfTestPasses
from cosine_node.engine.torch.packed_model import PackedModel
from cosine_node.engine.torch.pass_plan import KEY_QUANTUM
from cosine_node.engine.torch.row_tiles import RowKernel, RowTiles, RowTileSet, measure_tiles
from cosine_node.engine.torch.support import UNBOUNDED_TOKENS, context_tokens
from cosine_node.engine.tree import SequenceTree
from cosine_protocol.errors import UsageError
from cosine_protocol.request import Sampling

TRIED_KEYS: Final = (16, 496, 1040)
"""Few, nearly one block of PyTorch's kernel on CPUs, of 512 keys, and more than two."""
TRIED_PADDING: Final = (KEY_QUANTUM, 512)
"""The least padding, and so much that it fills another block of that kernel."""
TRIED_SOFTCAPS: Final = (None, 50.0)
"""None, and that of Gemma 2; any number selects attention step by step."""


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
                    found.setdefault(
                        (nn.Parameter, *matrix.shape), RowKernel(matrix.shape[0], partial(_times, matrix))
                    )
        elif not isinstance(module, nn.Embedding):
            # The router of a mixture of experts.
            for weight in module.parameters(recurse=False):
                if weight.ndim == 2:
                    found.setdefault(
                        (nn.Module, *weight.shape), RowKernel(weight.shape[1], partial(_times, weight.t()))
                    )
    # The layers that keep latents are alike.
    latents = next(filter(None, map(latent_attention_of, model.modules())), None)
    return [*found.values(), *(latents.kernels() if latents is not None else ())]


def _times(matrix: Tensor, rows: Tensor) -> Tensor:
    return torch.mm(rows, matrix)


def attention_tiles(
    shapes: Iterable[tuple[int, int, int]], *, dtype: torch.dtype, device: torch.device
) -> RowTiles:
    """The row tiles of attention over layers of these numbers of key heads and widths of keys and values."""
    kernels = [
        RowKernel(shape[1], _AttentionOfRows(shape, keys, softcap, dtype, device))
        for shape in shapes
        for keys in TRIED_KEYS
        for softcap in TRIED_SOFTCAPS
    ]
    return measure_tiles(kernels, dtype=dtype, device=device)


def hides_padding(
    shapes: Iterable[tuple[int, int, int]], tiles: RowTiles, *, dtype: torch.dtype, device: torch.device
) -> bool:
    """True if hidden keys at the end change no bit of attention over such layers."""
    for shape in shapes:
        for keys in TRIED_KEYS:
            for softcap in TRIED_SOFTCAPS:
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


def find_row_tiles(model: Any) -> RowTileSet:
    """The row tiles with which a model is deterministic on its device. Raises `UsageError` if there are none."""
    refused = f"--deterministic is not possible for models of type '{model.config.model_type}' on {model.device}"
    with torch.inference_mode():
        tiles = _measured_tiles(model)
        if tiles is None:
            raise UsageError(f"{refused}: hidden keys change the rounding of its attention; leave the option out.")
        packed = PackedModel(model, slots=POOL_TOKENS, tiles=tiles)
        longest = context_tokens(model.config)
        texts = SelfTestTexts.of(
            vocab_tokens=packed.vocab_tokens,
            context_tokens=0 if longest == UNBOUNDED_TOKENS else longest,
            has_window=True,
            attempt=0,
        )
        # Tokens at the end of the context follow none that could be fed before them.
        rows = [row for row in SelfTestPasses(packed).run(texts) if row.group is not Group.FAR]
        alone = _logits_alone(packed, [row.text for row in rows])
    for row in rows:
        if not torch.equal(row.logits, alone[row.text]):
            raise UsageError(
                f"{refused}: in a self-test {row.group} came out otherwise than alone; leave the option out."
            )
    return tiles


def _measured_tiles(model: Any) -> RowTileSet | None:
    """The row tiles of a model's computations; None where hidden keys change its attention."""
    packed = PackedModel(model, slots=POOL_TOKENS)
    dtype, device, shapes = model.dtype, packed.device, packed.store.shapes
    kernels = product_kernels(model) if packed.flat is None else packed.flat.kernels()
    products = measure_tiles(kernels, dtype=dtype, device=device)
    narrowest = min(width for _, width, _ in shapes)
    # PyTorch's CPU code takes up to 64 numbers at a time, the rest one by one, with another cosine for those.
    whole_vectors = RowTiles(64 // math.gcd(64, narrowest), products.limit)
    tiles = RowTileSet(
        products=max(products, whole_vectors, key=lambda tiles: tiles.quantum),
        attention=attention_tiles(shapes, dtype=dtype, device=device),
    )
    return tiles if hides_padding(shapes, tiles.attention, dtype=dtype, device=device) else None


def _logits_alone(packed: PackedModel, texts: list[Text]) -> dict[Text, Tensor]:
    """The logits [vocab] after each text, and after each of its beginnings, from passes over one text."""
    found: dict[Text, Tensor] = {}
    for text in sorted(texts, key=len, reverse=True):
        if text not in found:
            tree = SequenceTree(sampling=Sampling(), prompt_tokens=0)
            row = Row.chain(0, text)
            tree.add(row, range(len(text)))
            logits = packed.logits([(tree, row)], wanted=list(range(len(text)))).float()
            found |= {text[: i + 1]: logits[i] for i in range(len(text))}
    return found
