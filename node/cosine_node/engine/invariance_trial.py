"""A trial for deterministic mode: does every token come out bit for bit as in a pass over its own path alone?

The row tiles of the model's computations are measured first; the trial then takes the passes of the load trial,
which differ in all that may differ while serving, and the whole model as it will serve.
"""

import math
from typing import Any, Final

import torch
from torch import Tensor

from cosine_node.engine.base import Row
from cosine_node.engine.packed_model import PackedModel
from cosine_node.engine.row_kernels import attention_tiles, hides_padding, product_kernels
from cosine_node.engine.row_tiles import RowTiles, RowTileSet, measure_tiles
from cosine_node.engine.support import UNBOUNDED_TOKENS, context_tokens
from cosine_node.engine.tree import SequenceTree
from cosine_node.engine.trial_passes import TrialPasses
from cosine_node.engine.trial_rows import POOL_TOKENS, Group
from cosine_node.engine.trial_texts import Text, TrialTexts
from cosine_protocol.errors import UsageError
from cosine_protocol.request import Sampling

VECTOR_NUMBERS: Final = 64
"""PyTorch's CPU code takes up to so many numbers at a time, the rest one by one, with another cosine for those."""
ATTEMPT: Final = 0
"""A choice: the texts of the load trial's first attempt."""


def find_row_tiles(model: Any) -> RowTileSet:
    """The row tiles with which a model is deterministic on its device. Raises `UsageError` if there are none."""
    refused = f"--deterministic is not possible for models of type '{model.config.model_type}' on {model.device}"
    with torch.inference_mode():
        tiles = _measured_tiles(model)
        if tiles is None:
            raise UsageError(f"{refused}: hidden keys change the rounding of its attention; leave the option out.")
        packed = PackedModel(model, slots=POOL_TOKENS, tiles=tiles)
        longest = context_tokens(model.config)
        texts = TrialTexts.of(
            vocab_tokens=packed.vocab_tokens,
            context_tokens=0 if longest == UNBOUNDED_TOKENS else longest,
            has_window=True,
            attempt=ATTEMPT,
        )
        # Tokens at the end of the context follow none that could be fed before them.
        rows = [row for row in TrialPasses(packed).run(texts) if row.group is not Group.FAR]
        alone = _logits_alone(packed, [row.text for row in rows])
    for row in rows:
        if not torch.equal(row.logits, alone[row.text]):
            raise UsageError(
                f"{refused}: in a trial {row.group} came out otherwise than alone; leave the option out."
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
