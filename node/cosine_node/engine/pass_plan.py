"""The index tensors of one packed pass: what each sequence's tokens write, see, and are masked from.

Built once a pass and shared by all layers. Without a window every key in a segment is an ancestor of one of
its queries; with one, keys further back than the window are left out as well.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from cosine_node.engine.base import PREFIX, PassAbandoned, Row
from cosine_node.engine.kv_store import KvStore
from cosine_node.engine.tree import Node, SequenceTree, is_chain

Integers = npt.NDArray[np.int64]
Booleans = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class SlotSet:
    """Slots as one run `[start, stop)` where they are one, else as an index tensor."""

    start: int
    stop: int
    index: Tensor | None


@dataclass(frozen=True, slots=True)
class Segment:
    """One sequence's share of a pass: query rows `[start, stop)`, the slots of its keys, and its mask.

    `hidden` is True where a query must not see a key, [queries, keys]; None where all see all.
    """

    start: int
    stop: int
    slots: SlotSet
    hidden: Tensor | None


@dataclass(frozen=True, slots=True)
class Sight:
    """What one row of a pass sees: slots and absolute indices of its keys, indices of its queries, mask."""

    key_slots: Integers
    key_indices: Integers
    query_indices: Integers
    seen: Booleans | None

    def within(self, window: int | None) -> "Sight":
        """The same with keys further back than `window` tokens hidden; keys nobody sees are left out."""
        if window is None or int(self.query_indices.max()) < window:
            return self
        near = self.key_indices[None, :] > self.query_indices[:, None] - window
        seen = near if self.seen is None else near & self.seen
        needed = seen.any(0)
        remaining = seen[:, needed]
        return Sight(
            self.key_slots[needed],
            self.key_indices[needed],
            self.query_indices,
            None if remaining.all() else remaining,
        )


class PassPlan:
    """Everything the attention function needs in one pass.

    `input_ids` and `position_ids` are [1, tokens]; `written` are the slots of the tokens in their order.
    """

    def __init__(
        self,
        feeds: Sequence[tuple[SequenceTree, Row]],
        *,
        store: KvStore,
        device: torch.device,
        is_abandoned: Callable[[], bool] = lambda: False,
    ) -> None:
        self.store = store
        self._is_abandoned = is_abandoned
        self._device = device
        self._sights = [_sight(tree, row) for tree, row in feeds]
        self._segments: dict[int | None, list[Segment]] = {}
        self._biases: dict[tuple[int | None, torch.dtype], list[Tensor | None]] = {}
        tokens = [token for _, row in feeds for token in row.tokens]
        positions = np.concatenate([sight.query_indices for sight in self._sights])
        self.input_ids = torch.tensor([tokens], dtype=torch.int64, device=device)
        self.position_ids = torch.from_numpy(positions)[None].to(device)
        slots = np.array([tree.nodes[name].slot for tree, row in feeds for name in row.nodes], dtype=np.int64)
        self.written = _in_order(slots, device)

    def check(self) -> None:
        """Raises `PassAbandoned` where nobody wants the result any more; every layer asks."""
        if self._is_abandoned():
            raise PassAbandoned("The pass was abandoned.")

    def segments(self, window: int | None) -> list[Segment]:
        """The segments under a sliding window of that many tokens, or under none."""
        found = self._segments.get(window)
        if found is None:
            found = self._segments[window] = list(self._build(window))
        return found

    def biases(self, window: int | None, dtype: torch.dtype) -> list[Tensor | None]:
        """The segments' masks as numbers to add to scores, [queries, keys]."""
        found = self._biases.get((window, dtype))
        if found is None:
            found = [_bias(segment.hidden, dtype) for segment in self.segments(window)]
            self._biases[window, dtype] = found
        return found

    def _build(self, window: int | None) -> list[Segment]:
        segments, start = [], 0
        for sight in self._sights:
            stop = start + len(sight.query_indices)
            segments.append(_segment(sight.within(window), start, stop, self._device))
            start = stop
        return segments


def _segment(sight: Sight, start: int, stop: int, device: torch.device) -> Segment:
    slots, seen = sight.key_slots, sight.seen
    lowest, highest = int(slots.min()), int(slots.max())
    index = None
    if highest - lowest + 1 != len(slots):
        index = torch.from_numpy(slots).to(device)
    elif seen is not None:
        # The run is read in slot order, which need not be the order of the columns.
        seen = seen[:, np.argsort(slots)]
    hidden = None if seen is None else torch.from_numpy(~seen).to(device)
    return Segment(start, stop, SlotSet(lowest, highest + 1, index), hidden)


def _in_order(slots: Integers, device: torch.device) -> SlotSet:
    first = int(slots[0])
    is_run = np.array_equal(slots, np.arange(first, first + len(slots)))
    return SlotSet(first, first + len(slots), None if is_run else torch.from_numpy(slots).to(device))


def _bias(hidden: Tensor | None, dtype: torch.dtype) -> Tensor | None:
    if hidden is None:
        return None
    return torch.zeros(hidden.shape, dtype=dtype, device=hidden.device).masked_fill_(hidden, float("-inf"))


def _sight(tree: SequenceTree, row: Row) -> Sight:
    own = [tree.nodes[name] for name in row.nodes]
    above, seen = _chain_sight(tree, row) if is_chain(row) else _tree_sight(tree, row)
    if seen is not None:
        seen = np.concatenate([np.ones((len(own), len(tree.tokens)), dtype=np.bool_), seen], axis=1)
    shown = [*above, *own]
    slots = np.array([node.slot for node in shown], dtype=np.int64)
    indices = np.array([node.index for node in shown], dtype=np.int64)
    return Sight(
        np.concatenate([np.array(tree.slots, dtype=np.int64), slots]),
        np.concatenate([np.arange(len(tree.tokens), dtype=np.int64), indices]),
        indices[len(above) :],
        seen,
    )


def _chain_sight(tree: SequenceTree, row: Row) -> tuple[list[Node], Booleans | None]:
    above = tree.path(row.parents[0])
    count = len(row.tokens)
    return above, None if count == 1 else np.tri(count, len(above) + count, len(above), dtype=np.bool_)


def _tree_sight(tree: SequenceTree, row: Row) -> tuple[list[Node], Booleans]:
    """Ancestors outside the row, and which of them and of the row's own nodes each token sees."""
    outer: dict[int, list[Node]] = {}
    own = set(row.nodes)
    for parent in row.parents:
        if parent != PREFIX and parent not in own and parent not in outer:
            outer[parent] = tree.path(parent)
    above = list({node.slot: node for path in outer.values() for node in path}.values())
    column = {node.slot: i for i, node in enumerate(above)}
    rank = {name: i for i, name in enumerate(row.nodes)}
    seen = np.zeros((len(row.nodes), len(above) + len(row.nodes)), dtype=np.bool_)
    for i, parent in enumerate(row.parents):
        if parent in rank:
            seen[i] = seen[rank[parent]]
        elif parent != PREFIX:
            seen[i, [column[node.slot] for node in outer[parent]]] = True
        seen[i, len(above) + i] = True
    return above, seen
