"""Paths through a live tree."""

from collections.abc import Callable
from typing import Any

from cosine_p2p.strategy.tree import LiveTree, TreeNode


def first_choice(node: TreeNode, author: int) -> TreeNode | None:
    """Return the child with an author's highest draft probability, the oldest on a tie."""
    own = [child for child in node.children.values() if author in child.draft_probabilities]
    return max(own, key=lambda child: child.draft_probabilities[author], default=None)


def best_path(
    tree: LiveTree, key: Callable[[TreeNode], Any], *, allows: Callable[[TreeNode], bool] | None = None
) -> list[TreeNode]:
    """Return the path below the root along the children with the largest key, the oldest on a tie.

    `allows` filters the children.
    """
    nodes: list[TreeNode] = []
    children = tree.root.children
    while allowed := [child for child in children.values() if allows is None or allows(child)]:
        nodes.append(max(allowed, key=key))
        children = nodes[-1].children
    return nodes
