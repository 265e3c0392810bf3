"""The index tensors of one packed pass: what each sequence's tokens write, see, and are masked from.

Built once a pass and shared by all layers. Without a window every key in a call is an ancestor of one of its
queries; with one, keys further back than the window are left out as well.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final, Protocol

import numpy as np
import torch
from torch import Tensor

from cosine_node.engine.attention_mask import AttentionMask, Integers, mask_of
from cosine_node.engine.base import PassAbandoned, Row
from cosine_node.engine.kv_store import KvStore
from cosine_node.engine.shape_buckets import BatchShape, pad, padded_indices
from cosine_node.engine.tree import SequenceTree

FEW_QUERIES: Final = 16
"""Rows of up to so many tokens are gathered into one rectangle; longer ones keep a GPU busy alone."""


@dataclass(frozen=True, slots=True)
class Indices:
    """Slots, or tokens of a pass, as one run where they are one, else as an index tensor."""

    start: int
    count: int
    index: Tensor | None = None


class AttentionCall:
    """What attention takes at once: `sequences` of equally many queries and keys.

    `rows` are the tokens of the pass, `slots` the keys', sequence after sequence. `hidden` is True where a query
    must not see a key, [sequences, queries, keys]; None for a single query that sees all.
    """

    __slots__ = ("_biases", "_hidden", "is_lone_run", "rows", "sequences", "slots")

    def __init__(self, rows: Indices, slots: Indices, *, sequences: int, hidden: Tensor | None) -> None:
        self.rows = rows
        self.slots = slots
        self.sequences = sequences
        self._hidden = hidden
        self._biases: dict[tuple[torch.dtype, int], Tensor] = {}
        self.is_lone_run = hidden is None and slots.index is None

    @property
    def is_lone(self) -> bool:
        """Whether it is a single query that sees all its keys."""
        return self._hidden is None

    def bias(self, dtype: torch.dtype, group: int) -> Tensor | None:
        """The mask as numbers to add to scores, [sequences, 1, group * queries, keys]; None for a lone query."""
        if self._hidden is None:
            return None
        found = self._biases.get((dtype, group))
        if found is None:
            bias = torch.zeros(self._hidden.shape, dtype=dtype, device=self._hidden.device)
            bias.masked_fill_(self._hidden, float("-inf"))
            found = self._biases[dtype, group] = bias.repeat(1, group, 1)[:, None]
        return found


class AttentionPlan(Protocol):
    """What attention needs to know of a pass."""

    @property
    def store(self) -> KvStore: ...

    @property
    def written(self) -> Indices:
        """The slots of the pass's tokens in their order."""
        ...

    @property
    def order(self) -> Tensor | None:
        """Where each token is in the rows of all calls together; None where that is the pass's own order."""
        ...

    def check(self) -> None:
        """Raises `PassAbandoned` where nobody wants the result any more; every layer asks."""
        ...

    def calls(self, window: int | None) -> Sequence[AttentionCall]:
        """The calls under a sliding window of that many tokens, or under none."""
        ...


class DecoderPlan(AttentionPlan, Protocol):
    """What a decoder needs besides: tokens and their positions, both [1, tokens]."""

    @property
    def input_ids(self) -> Tensor: ...

    @property
    def position_ids(self) -> Tensor: ...


class PassPlan:
    """Implements `DecoderPlan` for rows that are in their trees already.

    With `gathers` short rows become one rectangle, which a GPU takes in one kernel; without, each row reads its
    keys where they are, which on a CPU is faster.
    """

    def __init__(
        self,
        feeds: Sequence[tuple[SequenceTree, Row]],
        *,
        store: KvStore,
        device: torch.device,
        gathers: bool = False,
        is_abandoned: Callable[[], bool] = lambda: False,
    ) -> None:
        self.store = store
        self.masks = [mask_of(tree, row) for tree, row in feeds]
        self.tokens = [token for _, row in feeds for token in row.tokens]
        self.slots = np.array([tree.nodes[name].slot for tree, row in feeds for name in row.nodes], dtype=np.int64)
        self.positions: Integers = np.concatenate([mask.query_indices for mask in self.masks])
        self._is_abandoned = is_abandoned
        self._device = device
        self._calls: dict[int | None, list[AttentionCall]] = {}
        self._starts = np.cumsum([0, *(len(mask.query_indices) for mask in self.masks)])
        few = [place for place, mask in enumerate(self.masks) if len(mask.query_indices) <= FEW_QUERIES]
        self._gathered = few if gathers and len(few) > 1 else []
        self._apart = [place for place in range(len(self.masks)) if place not in self._gathered]

    @cached_property
    def input_ids(self) -> Tensor:
        return torch.tensor([self.tokens], dtype=torch.int64, device=self._device)

    @cached_property
    def position_ids(self) -> Tensor:
        return torch.from_numpy(self.positions)[None].to(self._device)

    @cached_property
    def written(self) -> Indices:
        return _places(self.slots, self._device)

    @cached_property
    def order(self) -> Tensor | None:
        if not self._gathered:
            return None
        gathered = [self.masks[place] for place in self._gathered]
        shape = BatchShape.around(gathered)
        apart = sum(len(self.masks[place].query_indices) for place in self._apart)
        rows = np.concatenate([padded_indices(gathered, shape), shape.tokens + np.arange(apart)])
        tokens = np.concatenate([self._tokens_of(place) for place in (*self._gathered, *self._apart)])
        order = np.empty_like(rows)
        order[tokens] = rows
        is_own_order = np.array_equal(order, np.arange(shape.tokens + apart))
        return None if is_own_order else torch.from_numpy(order).to(self._device)

    def check(self) -> None:
        if self._is_abandoned():
            raise PassAbandoned("The pass was abandoned.")

    def calls(self, window: int | None) -> Sequence[AttentionCall]:
        found = self._calls.get(window)
        if found is None:
            found = self._calls[window] = list(self._build(window))
        return found

    def _build(self, window: int | None) -> Iterator[AttentionCall]:
        if self._gathered:
            yield self._padded_call([self.masks[place].within(window) for place in self._gathered])
        for place in self._apart:
            mask = self.masks[place].within(window)
            yield _call(mask, Indices(int(self._starts[place]), len(mask.query_indices)), self._device)

    def _padded_call(self, masks: Sequence[AttentionMask]) -> AttentionCall:
        shape = BatchShape.around(masks)
        padded = pad(masks, shape)
        rows = np.zeros(shape.tokens, dtype=np.int64)
        rows[padded.places] = np.concatenate([self._tokens_of(place) for place in self._gathered])
        return AttentionCall(
            _places(rows, self._device),
            Indices(0, padded.slots.size, torch.from_numpy(padded.slots).flatten().to(self._device)),
            sequences=shape.sequences,
            hidden=torch.from_numpy(padded.hidden).to(self._device),
        )

    def _tokens_of(self, place: int) -> Integers:
        return np.arange(self._starts[place], self._starts[place + 1], dtype=np.int64)


def _call(mask: AttentionMask, rows: Indices, device: torch.device) -> AttentionCall:
    slots, visible = mask.key_slots, mask.visible
    lowest, highest = int(slots.min()), int(slots.max())
    index = None
    if highest - lowest + 1 != len(slots):
        index = torch.from_numpy(slots).to(device)
    elif visible is not None:
        # The run is read in slot order, which need not be the order of the columns.
        visible = visible[:, np.argsort(slots)]
    hidden = None if visible is None else torch.from_numpy(~visible)[None].to(device)
    return AttentionCall(rows, Indices(lowest, len(slots), index), sequences=1, hidden=hidden)


def _places(numbers: Integers, device: torch.device) -> Indices:
    first, count = int(numbers[0]), len(numbers)
    is_run = np.array_equal(numbers, np.arange(first, first + count))
    return Indices(first, count, None if is_run else torch.from_numpy(numbers).to(device))
