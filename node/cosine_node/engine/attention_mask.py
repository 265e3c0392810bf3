"""The attention mask of a row: which slots of the pool it reads, and which of them each token may see.

A token of a tree sees the kept prefix, its ancestors and itself (tree attention, SpecInfer, arXiv 2305.09781).
Pure, no torch.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from cosine_node.engine.base import PREFIX, Row
from cosine_node.engine.tree import FedNode, SequenceTree

Integers = npt.NDArray[np.int64]
Booleans = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class AttentionMask:
    """The keys and queries of one row of a pass.

    `key_slots` and `key_indices` [keys] are pool slots and absolute indices in the sequence, `query_indices`
    [queries] those of the row's tokens. `visible` [queries, keys] says which keys a query sees; None for a single
    query that sees all.
    """

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
    """The mask of a row that is in its tree already.

    Its keys are the prefix, then the row's ancestors among the nodes, then the row itself. Other branches of the
    tree are left out: nobody in the row sees them.
    """
    own = [tree.nodes[name] for name in row.nodes]
    below: Booleans | None
    if row.is_chain:
        ancestors = tree.path(row.parents[0])
        queries = len(own)
        below = None if queries == 1 else np.tri(queries, len(ancestors) + queries, len(ancestors), dtype=np.bool_)
    else:
        ancestors, below = _branching(tree, row)
    nodes = [*ancestors, *own]
    slots = np.array([node.slot for node in nodes], dtype=np.int64)
    indices = np.array([node.index for node in nodes], dtype=np.int64)
    visible = None
    if below is not None:
        visible = np.concatenate([np.ones((len(own), len(tree.tokens)), dtype=np.bool_), below], axis=1)
    return AttentionMask(
        np.concatenate([np.array(tree.slots, dtype=np.int64), slots]),
        np.concatenate([np.arange(len(tree.tokens), dtype=np.int64), indices]),
        indices[len(ancestors) :],
        visible,
    )


def _branching(tree: SequenceTree, row: Row) -> tuple[list[FedNode], Booleans]:
    """A branching row's ancestors outside it, and which of them and of the row's own nodes each token sees."""
    rank = {name: i for i, name in enumerate(row.nodes)}
    outside = [parent for parent in row.parents if parent != PREFIX and parent not in rank]
    paths = {parent: tree.path(parent) for parent in dict.fromkeys(outside)}
    # Paths share their beginnings; a slot tells a node apart.
    ancestors = list({node.slot: node for path in paths.values() for node in path}.values())
    column = {node.slot: i for i, node in enumerate(ancestors)}
    visible = np.zeros((len(row.nodes), len(ancestors) + len(row.nodes)), dtype=np.bool_)
    for i, parent in enumerate(row.parents):
        if parent in rank:
            visible[i] = visible[rank[parent]]
        elif parent != PREFIX:
            visible[i, [column[node.slot] for node in paths[parent]]] = True
        visible[i, len(ancestors) + i] = True
    return ancestors, visible


def masks_by_path(tree: SequenceTree, row: Row) -> list[tuple[Integers, AttentionMask]]:
    """A row that is in its tree, cut into paths: the numbers of the queries in the row, and the mask of each path.

    A path leads from the beginning of the sequence to a leaf of the row. Its keys are its own tokens in their
    order, its queries those of the row that no path before has had.
    """
    number = {name: i for i, name in enumerate(row.nodes)}
    inner = set(row.parents)
    prefix = np.array(tree.slots, dtype=np.int64)
    found: list[tuple[Integers, AttentionMask]] = []
    for leaf in row.nodes:
        if leaf in inner:
            continue
        path = tree.path(leaf)
        queries: list[int] = []
        name = leaf
        while name in number:
            queries.append(number.pop(name))
            name = tree.nodes[name].parent
        queries.reverse()
        slots = np.concatenate([prefix, np.array([node.slot for node in path], dtype=np.int64)])
        indices = np.concatenate(
            [np.arange(len(prefix), dtype=np.int64), np.array([node.index for node in path], dtype=np.int64)]
        )
        visible = np.tri(len(queries), len(slots), len(slots) - len(queries), dtype=np.bool_)
        mask = AttentionMask(slots, indices, indices[len(slots) - len(queries) :], visible)
        found.append((np.array(queries, dtype=np.int64), mask))
    return found
