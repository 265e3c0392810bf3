"""Rows of a pass that are taken together: a rectangle of sequences, their queries and keys. Pure, no tensors."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from cosine_node.engine.sight import Booleans, Integers, Sight

ALIGNED_KEYS: Final = 64
"""Kernels want the width of a mask to be a multiple of some power of two."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GridShape:
    """How many sequences, queries of each, and keys of each a rectangle has."""

    sequences: int
    queries: int
    keys: int

    @classmethod
    def around(cls, sights: Sequence[Sight]) -> "GridShape":
        """The smallest that holds these rows."""
        keys = max(len(sight.key_slots) for sight in sights)
        return cls(
            sequences=len(sights),
            queries=max(len(sight.query_indices) for sight in sights),
            keys=-(-keys // ALIGNED_KEYS) * ALIGNED_KEYS,
        )

    @property
    def tokens(self) -> int:
        return self.sequences * self.queries


@dataclass(frozen=True, slots=True)
class Grid:
    """`slots` [sequences, keys] of the pool, and True in `hidden` [sequences, queries, keys] where not to look.

    `places` [tokens] says where in [sequences * queries] the tokens of the rows are, in their order. Padding looks
    at the first key of its sequence only, or of the first one: whatever it sees, it must see something.
    """

    slots: Integers
    hidden: Booleans
    places: Integers


def laid_out(sights: Sequence[Sight], shape: GridShape) -> Grid:
    """These rows in a rectangle that is large enough."""
    slots = np.full((shape.sequences, shape.keys), sights[0].key_slots[0], dtype=np.int64)
    hidden = np.ones((shape.sequences, shape.queries, shape.keys), dtype=np.bool_)
    hidden[:, :, 0] = False
    for number, sight in enumerate(sights):
        queries, keys = len(sight.query_indices), len(sight.key_slots)
        slots[number, :keys] = sight.key_slots
        slots[number, keys:] = sight.key_slots[0]
        hidden[number, :queries, :keys] = False if sight.seen is None else ~sight.seen
    return Grid(slots, hidden, places_of(sights, shape))


def places_of(sights: Sequence[Sight], shape: GridShape) -> Integers:
    """Where in [sequences * queries] of a shape the tokens of these rows are."""
    rows = [np.arange(len(sight.query_indices)) + number * shape.queries for number, sight in enumerate(sights)]
    return np.concatenate(rows)
