"""A self-test for deterministic mode: does every token come out bit for bit as in a pass over its own path alone?

The row tiles of the model's computations are measured first; then come the passes of the self-test at load,
which differ in all that may differ while serving, and the whole model as it will serve.
"""

import math
from collections.abc import Sequence
from typing import Any, Final

import torch
from torch import Tensor

from cosine_node.engine.base import Row
from cosine_node.engine.kv_pool import PagePool
from cosine_node.engine.paged import PagedEngine
from cosine_node.engine.self_test import POOL_TOKENS, Group, SelfTestRow, SelfTestTexts, Text, self_test_rows
from cosine_node.engine.torch.packed_model import PackedModel
from cosine_node.engine.torch.pass_model import PassModel
from cosine_node.engine.torch.row_kernels import attention_tiles, hides_padding, product_kernels
from cosine_node.engine.torch.row_tiles import RowTiles, RowTileSet, measure_tiles
from cosine_node.engine.torch.support import UNBOUNDED_TOKENS, context_tokens, numerics
from cosine_node.engine.tree import SequenceTree
from cosine_protocol.errors import UsageError
from cosine_protocol.request import Sampling


class _FarTree(SequenceTree):
    """A sequence whose tokens stand at given positions by their depth. Its nodes may not be kept."""

    __slots__ = ("positions",)

    def __init__(self, positions: Sequence[int]) -> None:
        super().__init__(sampling=Sampling(), prompt_tokens=0)
        self.positions = positions

    def index_after(self, parent: int) -> int:
        return self.positions[len(self.path(parent))]


class SelfTestPasses(PagedEngine):
    """A model of at least `POOL_TOKENS` slots over an empty pool: good for one `run`."""

    def __init__(self, passes: PassModel) -> None:
        self._passes = passes
        super().__init__(
            PagePool(tokens=POOL_TOKENS),
            vocab_tokens=passes.vocab_tokens,
            # A model whose context is shorter than the self-test says so itself.
            context_tokens=max(context_tokens(passes.model.config), POOL_TOKENS),
            numerics=numerics(passes.model),
        )

    def run(self, texts: SelfTestTexts) -> list[SelfTestRow[Tensor]]:
        """The rows of the self-test, in six passes."""
        far = self.open(sampling=Sampling(), prompt_tokens=0)
        self._trees[far] = _FarTree(texts.far_positions)
        return self_test_rows(self, self._logits, texts, far=far)

    def _logits(self, rows: Sequence[Row]) -> list[Tensor]:
        trees = self.feed(rows)
        wanted = list(range(sum(len(row.tokens) for row in rows)))
        logits = self._passes.logits(list(zip(trees, rows, strict=True)), wanted=wanted)
        return list(logits.float())


VECTOR_NUMBERS: Final = 64
"""PyTorch's CPU code takes up to so many numbers at a time, the rest one by one, with another cosine for those."""
ATTEMPT: Final = 0
"""The texts of the first attempt of the self-test at load."""


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
            attempt=ATTEMPT,
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
    whole_vectors = RowTiles(VECTOR_NUMBERS // math.gcd(VECTOR_NUMBERS, narrowest), products.limit)
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
