"""The index tensors of one packed pass: what each sequence's tokens write, read, and are masked from.

Built once a pass and shared by all layers. Without a window every key of a call is an ancestor of one of its
queries; with one, keys further back than the window are left out as well.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from cosine_node.engine.attention_mask import AttentionMask, Integers, mask_of
from cosine_node.engine.base import PassAbandoned, Row
from cosine_node.engine.kv_store import KvStore
from cosine_node.engine.row_tiles import RowTiles
from cosine_node.engine.shape_buckets import MAX_PADDED_QUERIES, BatchShape, pad, padded_indices
from cosine_node.engine.tree import SequenceTree


@dataclass(frozen=True, slots=True)
class Indices:
    """Slots, or tokens of a pass: a run where they are one, which is read without a copy, else an index tensor."""

    start: int
    count: int
    index: Tensor | None = None

    @classmethod
    def of(cls, numbers: Integers, device: torch.device) -> "Indices":
        first, count = int(numbers[0]), len(numbers)
        is_run = np.array_equal(numbers, np.arange(first, first + count))
        return cls(first, count, None if is_run else torch.from_numpy(numbers).to(device))

    def part(self, first: int, count: int) -> "Indices":
        """So many of them, from the one of that number on."""
        if self.index is None:
            return Indices(self.start + first, count)
        return Indices(self.start, count, self.index.narrow(0, first, count))


class AttentionCall:
    """The inputs of one call of the attention kernel: `sequences` of equally many queries and keys.

    `queries` are tokens of the pass, `slots` those of the keys, sequence after sequence. `hidden` is True where a
    query must not see a key, [sequences, queries, keys]; None for a single query that sees all.
    """

    __slots__ = ("_biases", "_hidden", "is_contiguous_decode", "is_decode", "queries", "sequences", "slots")

    def __init__(self, queries: Indices, slots: Indices, *, sequences: int, hidden: Tensor | None) -> None:
        self.queries = queries
        self.slots = slots
        self.sequences = sequences
        self.is_decode = hidden is None
        """True for a single query that sees all its keys, as in plain decoding."""
        self.is_contiguous_decode = hidden is None and slots.index is None
        self._hidden = hidden
        self._biases: dict[tuple[torch.dtype, int], Tensor] = {}

    def bias(self, dtype: torch.dtype, group: int, *, tiles: RowTiles | None = None) -> Tensor | None:
        """The mask as numbers to add to scores, [sequences, 1, group * queries, keys]; None for a decode.

        Made once for all layers: `group` is how many query heads share a key head. Rows that pad it for `tiles` see
        all keys, for the softmax of what sees nothing is NaN.
        """
        if self._hidden is None:
            return None
        found = self._biases.get((dtype, group))
        if found is None:
            bias = torch.zeros(self._hidden.shape, dtype=dtype, device=self._hidden.device)
            bias.masked_fill_(self._hidden, float("-inf"))
            found = bias.repeat(1, group, 1)[:, None]
            if tiles is not None:
                found = tiles.pad(found)
            self._biases[dtype, group] = found
        return found

    def pieces(self, most_queries: int) -> "list[tuple[slice, AttentionCall]]":
        """The call in pieces of at most so many queries, each with its place among the sequences."""
        if self._hidden is None or self._hidden.shape[0] * self._hidden.shape[1] <= most_queries:
            return [(slice(0, self.sequences), self)]
        queries, keys = self._hidden.shape[1:]
        # Outputs follow each other: whole sequences in one piece, or some queries of one.
        sequences, step = max(1, most_queries // queries), min(most_queries, queries)
        found = []
        for first in range(0, self.sequences, sequences):
            place = slice(first, min(first + sequences, self.sequences))
            count = place.stop - first
            for start in range(0, queries, step):
                length = min(step, queries - start)
                piece = AttentionCall(
                    self.queries.part(first * queries + start, (count - 1) * queries + length),
                    self.slots.part(first * keys, count * keys),
                    sequences=count,
                    hidden=self._hidden[place, start : start + length],
                )
                found.append((place, piece))
        return found


class AttentionPlan(Protocol):
    """The part of a pass that attention needs to know."""

    @property
    def store(self) -> KvStore: ...

    @property
    def written(self) -> Indices:
        """The slots of the pass's tokens in their order."""
        ...

    @property
    def window_written(self) -> Indices:
        """The same in layers with a sliding window."""
        ...

    @property
    def order(self) -> Tensor | None:
        """Where each token is in the queries of all calls together; None where that is the pass's own order."""
        ...

    @property
    def attention_tiles(self) -> RowTiles | None:
        """What rows of attention are padded and cut to in deterministic mode; None otherwise."""
        ...

    def check(self) -> None:
        """Raise `PassAbandoned` where nobody wants the result any more; every layer asks."""
        ...

    def calls(self, window: int | None) -> Sequence[AttentionCall]:
        """The calls under a sliding window of that many tokens, or under none."""
        ...


class DecoderPlan(AttentionPlan, Protocol):
    """The part of a pass that a decoder needs besides: tokens and their positions, both [1, tokens]."""

    @property
    def input_ids(self) -> Tensor: ...

    @property
    def position_ids(self) -> Tensor: ...


class RowsPlan(ABC):
    """The tokens of a pass over rows that are in their trees already, and its calls, made once for each window.

    `written` are the slots of `tokens`, of which a plan may have more, as padding. With an order, implements
    `DecoderPlan`.
    """

    def __init__(
        self,
        *,
        tokens: Sequence[int],
        positions: Integers,
        slots: Integers,
        store: KvStore,
        device: torch.device,
        is_abandoned: Callable[[], bool],
    ) -> None:
        self.tokens = tokens
        self.positions = positions
        self.slots = slots
        self.store = store
        self.device = device
        self._is_abandoned = is_abandoned
        self._calls: dict[int | None, list[AttentionCall]] = {}

    @cached_property
    def input_ids(self) -> Tensor:
        return torch.tensor([self.tokens], dtype=torch.int64, device=self.device)

    @cached_property
    def position_ids(self) -> Tensor:
        return torch.from_numpy(self.positions)[None].to(self.device)

    @cached_property
    def written(self) -> Indices:
        return Indices.of(self.slots, self.device)

    @cached_property
    def window_written(self) -> Indices:
        return Indices.of(self.store.window_slots(self.slots), self.device)

    def check(self) -> None:
        if self._is_abandoned():
            raise PassAbandoned("The pass was abandoned.")

    def calls(self, window: int | None) -> Sequence[AttentionCall]:
        found = self._calls.get(window)
        if found is None:
            found = self._calls[window] = self._make_calls(window)
        return found

    @abstractmethod
    def _make_calls(self, window: int | None) -> list[AttentionCall]: ...


class PassPlan(RowsPlan):
    """Implements `DecoderPlan` for rows that are in their trees already.

    With `pads_rows` short rows become one rectangle, which a GPU takes in one kernel; without, each row reads its
    keys where they are, which on a CPU is faster.
    """

    def __init__(
        self,
        feeds: Sequence[tuple[SequenceTree, Row]],
        *,
        store: KvStore,
        device: torch.device,
        pads_rows: bool = False,
        is_abandoned: Callable[[], bool] = lambda: False,
    ) -> None:
        self.masks = [mask_of(tree, row) for tree, row in feeds]
        super().__init__(
            tokens=[token for _, row in feeds for token in row.tokens],
            positions=np.concatenate([mask.query_indices for mask in self.masks]),
            slots=np.array([tree.nodes[name].slot for tree, row in feeds for name in row.nodes], dtype=np.int64),
            store=store,
            device=device,
            is_abandoned=is_abandoned,
        )
        self.attention_tiles: RowTiles | None = None
        # Rows by their number in the pass: row i has the tokens from _starts[i] to _starts[i + 1].
        self._starts = np.cumsum([0, *(len(mask.query_indices) for mask in self.masks)])
        short = [i for i, mask in enumerate(self.masks) if len(mask.query_indices) <= MAX_PADDED_QUERIES]
        self._padded = short if pads_rows and len(short) > 1 else []
        self._separate = [i for i in range(len(self.masks)) if i not in self._padded]

    @cached_property
    def order(self) -> Tensor | None:
        if not self._padded:
            return None
        padded = [self.masks[i] for i in self._padded]
        shape = BatchShape.around(padded)
        separate = sum(len(self.masks[i].query_indices) for i in self._separate)
        # The outputs of the rectangle come first, its padding included, then those of the separate rows.
        outputs = np.concatenate([padded_indices(padded, shape), shape.tokens + np.arange(separate)])
        tokens = np.concatenate([self._tokens_of(i) for i in (*self._padded, *self._separate)])
        order = np.empty_like(outputs)
        order[tokens] = outputs
        is_own_order = np.array_equal(order, np.arange(shape.tokens + separate))
        return None if is_own_order else torch.from_numpy(order).to(self.device)

    def _make_calls(self, window: int | None) -> list[AttentionCall]:
        masks = [mask.within(window) for mask in self.masks]
        if window is not None:
            masks = [replace(mask, key_slots=self.store.window_slots(mask.key_slots)) for mask in masks]
        calls = [self._padded_call([masks[i] for i in self._padded])] if self._padded else []
        return calls + [self._separate_call(i, masks[i]) for i in self._separate]

    def _padded_call(self, masks: Sequence[AttentionMask]) -> AttentionCall:
        shape = BatchShape.around(masks)
        padded = pad(masks, shape)
        # The queries of the padding are those of the first token; nobody reads their output.
        queries = np.zeros(shape.tokens, dtype=np.int64)
        queries[padded.token_indices] = np.concatenate([self._tokens_of(i) for i in self._padded])
        return AttentionCall(
            Indices.of(queries, self.device),
            Indices(0, padded.slots.size, torch.from_numpy(padded.slots).flatten().to(self.device)),
            sequences=shape.sequences,
            hidden=torch.from_numpy(padded.hidden).to(self.device),
        )

    def _separate_call(self, number: int, mask: AttentionMask) -> AttentionCall:
        slots, visible = mask.key_slots, mask.visible
        lowest, highest = int(slots.min()), int(slots.max())
        index = None
        if highest - lowest + 1 != len(slots):
            index = torch.from_numpy(slots).to(self.device)
        elif visible is not None:
            # The run is read in slot order, which need not be the order of the columns.
            visible = visible[:, np.argsort(slots)]
        return AttentionCall(
            Indices(int(self._starts[number]), len(mask.query_indices)),
            Indices(lowest, len(slots), index),
            sequences=1,
            hidden=None if visible is None else torch.from_numpy(~visible)[None].to(self.device),
        )

    def _tokens_of(self, number: int) -> Integers:
        return np.arange(self._starts[number], self._starts[number + 1], dtype=np.int64)
