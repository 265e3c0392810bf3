"""Rows of a pass padded to one rectangle of sequences, queries and keys, and the shape buckets of such rectangles.

A kernel takes a rectangle at once, and a CUDA graph one of a fixed shape only. So a pass of few tokens is padded to
the next larger shape of a short list, its shape bucket. Pure, no torch.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from cosine_node.engine.attention_mask import AttentionMask, Booleans, Integers

ALIGNED_KEYS: Final = 64
"""A choice: kernels want the width of a mask to be a multiple of some power of two."""
MAX_PADDED_QUERIES: Final = 16
"""A choice: rows of up to so many tokens are padded to one rectangle; longer ones keep a GPU busy alone."""
MAX_BUCKET_TOKENS: Final = 64
"""Passes of more tokens are bound by arithmetic; launching them costs little beside it."""
LEAST_KEYS: Final = 128
"""A choice: shorter contexts share a bucket."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchShape:
    """The number of sequences, of queries of each, and of keys of each in a rectangle."""

    sequences: int
    queries: int
    keys: int

    @classmethod
    def around(cls, masks: Sequence[AttentionMask]) -> "BatchShape":
        """The smallest that holds these rows."""
        keys = max(len(mask.key_slots) for mask in masks)
        return cls(
            sequences=len(masks),
            queries=max(len(mask.query_indices) for mask in masks),
            keys=-(-keys // ALIGNED_KEYS) * ALIGNED_KEYS,
        )

    @property
    def tokens(self) -> int:
        return self.sequences * self.queries


def bucket_of(shape: BatchShape) -> BatchShape | None:
    """The shape bucket that holds a shape, or None for a pass that is not worth a CUDA graph.

    Sequences and queries are rounded up to powers of two. Keys may also be three quarters of one, for they are
    most of the memory that a pass reads.
    """
    if shape.queries > MAX_PADDED_QUERIES:
        return None
    keys = max(shape.keys, LEAST_KEYS)
    power = _power_of_two(keys)
    bucket = BatchShape(
        sequences=_power_of_two(shape.sequences),
        queries=_power_of_two(shape.queries),
        keys=power * 3 // 4 if keys <= power * 3 // 4 else power,
    )
    return bucket if bucket.tokens <= MAX_BUCKET_TOKENS else None


def _power_of_two(number: int) -> int:
    return 1 << (number - 1).bit_length()


@dataclass(frozen=True, slots=True)
class PaddedRows:
    """`slots` [sequences, keys] of the pool, and True in `hidden` [sequences, queries, keys] where not to look.

    `token_indices` [tokens] says where in [sequences * queries] the tokens of the rows are, in their order.
    """

    slots: Integers
    hidden: Booleans
    token_indices: Integers


def pad(masks: Sequence[AttentionMask], shape: BatchShape) -> PaddedRows:
    """Rows in a rectangle that is large enough.

    Padding looks at the first key of its sequence only, or of the first sequence: the softmax of a query that sees
    nothing is NaN.
    """
    slots = np.full((shape.sequences, shape.keys), masks[0].key_slots[0], dtype=np.int64)
    hidden = np.ones((shape.sequences, shape.queries, shape.keys), dtype=np.bool_)
    hidden[:, :, 0] = False
    for number, mask in enumerate(masks):
        queries, keys = len(mask.query_indices), len(mask.key_slots)
        slots[number, :keys] = mask.key_slots
        slots[number, keys:] = mask.key_slots[0]
        hidden[number, :queries, :keys] = False if mask.visible is None else ~mask.visible
    return PaddedRows(slots, hidden, padded_indices(masks, shape))


def padded_indices(masks: Sequence[AttentionMask], shape: BatchShape) -> Integers:
    """Where in [sequences * queries] of a shape the tokens of these rows are."""
    rows = [np.arange(len(mask.query_indices)) + number * shape.queries for number, mask in enumerate(masks)]
    return np.concatenate(rows)
