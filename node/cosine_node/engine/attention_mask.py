"""What the tokens of a row of a pass may see: which slots of the pool, and which of them each. Pure, no tensors."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from cosine_node.engine.base import PREFIX, Row
from cosine_node.engine.tree import FedNode, SequenceTree, is_chain

Integers = npt.NDArray[np.int64]
Booleans = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class AttentionMask:
    """What one row of a pass sees: slots and absolute indices of its keys, indices of its queries, mask."""

    key_slots: Integers
    key_indices: Integers
    query_indices: Integers
    visible: Booleans | None

    def within(self, window: int | None) -> "AttentionMask":
        """The same with keys further back than `window` tokens hidden; keys nobody sees are left out."""
        if window is None or int(self.query_indices.max()) < window:
            return self
        near = self.key_indices[None, :] > self.query_indices[:, None] - window
        visible = near if self.visible is None else near & self.visible
        needed = visible.any(0)
        remaining = visible[:, needed]
        return AttentionMask(
            self.key_slots[needed],
            self.key_indices[needed],
            self.query_indices,
            None if remaining.all() else remaining,
        )


def mask_of(tree: SequenceTree, row: Row) -> AttentionMask:
    """What a row sees that is in its tree already."""
    own = [tree.nodes[name] for name in row.nodes]
    above, visible = _chain_mask(tree, row) if is_chain(row) else _tree_mask(tree, row)
    if visible is not None:
        visible = np.concatenate([np.ones((len(own), len(tree.tokens)), dtype=np.bool_), visible], axis=1)
    shown = [*above, *own]
    slots = np.array([node.slot for node in shown], dtype=np.int64)
    indices = np.array([node.index for node in shown], dtype=np.int64)
    return AttentionMask(
        np.concatenate([np.array(tree.slots, dtype=np.int64), slots]),
        np.concatenate([np.arange(len(tree.tokens), dtype=np.int64), indices]),
        indices[len(above) :],
        visible,
    )


def _chain_mask(tree: SequenceTree, row: Row) -> tuple[list[FedNode], Booleans | None]:
    above = tree.path(row.parents[0])
    count = len(row.tokens)
    return above, None if count == 1 else np.tri(count, len(above) + count, len(above), dtype=np.bool_)


def _tree_mask(tree: SequenceTree, row: Row) -> tuple[list[FedNode], Booleans]:
    """Ancestors outside the row, and which of them and of the row's own nodes each token sees."""
    outer: dict[int, list[FedNode]] = {}
    own = set(row.nodes)
    for parent in row.parents:
        if parent != PREFIX and parent not in own and parent not in outer:
            outer[parent] = tree.path(parent)
    above = list({node.slot: node for path in outer.values() for node in path}.values())
    column = {node.slot: i for i, node in enumerate(above)}
    rank = {name: i for i, name in enumerate(row.nodes)}
    visible = np.zeros((len(row.nodes), len(above) + len(row.nodes)), dtype=np.bool_)
    for i, parent in enumerate(row.parents):
        if parent in rank:
            visible[i] = visible[rank[parent]]
        elif parent != PREFIX:
            visible[i, [column[node.slot] for node in outer[parent]]] = True
        visible[i, len(above) + i] = True
    return above, visible
