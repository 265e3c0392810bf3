"""What the tokens of a row of a pass may see: which slots of the pool, and which of them each. Pure, no tensors."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from cosine_node.engine.base import PREFIX, Row
from cosine_node.engine.tree import Node, SequenceTree, is_chain

Integers = npt.NDArray[np.int64]
Booleans = npt.NDArray[np.bool_]


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


def sight_of(tree: SequenceTree, row: Row) -> Sight:
    """What a row sees that is in its tree already."""
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
