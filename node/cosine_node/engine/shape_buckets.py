"""Rows of a pass that are taken together: a rectangle of sequences, their queries and keys. Pure, no tensors."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from cosine_node.engine.attention_mask import AttentionMask, Booleans, Integers

ALIGNED_KEYS: Final = 64
"""Kernels want the width of a mask to be a multiple of some power of two."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchShape:
    """How many sequences, queries of each, and keys of each a rectangle has."""

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


@dataclass(frozen=True, slots=True)
class PaddedRows:
    """`slots` [sequences, keys] of the pool, and True in `hidden` [sequences, queries, keys] where not to look.

    `places` [tokens] says where in [sequences * queries] the tokens of the rows are, in their order. Padding looks
    at the first key of its sequence only, or of the first one: whatever it sees, it must see something.
    """

    slots: Integers
    hidden: Booleans
    places: Integers


def pad(masks: Sequence[AttentionMask], shape: BatchShape) -> PaddedRows:
    """These rows in a rectangle that is large enough."""
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
