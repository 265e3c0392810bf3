"""Lines through a live tree along which rivals draft and verify."""

from collections.abc import Callable
from typing import Any

from cosine_p2p.strategy.tree import LiveTree, TreeNode


def first_choice(node: TreeNode, author: int) -> TreeNode | None:
    """The child to which an author gives the highest draft probability, the oldest on a tie."""
    own = [child for child in node.children.values() if author in child.draft_probabilities]
    return max(own, key=lambda child: child.draft_probabilities[author], default=None)


def best_path(
    tree: LiveTree, key: Callable[[TreeNode], Any], *, allows: Callable[[TreeNode], bool] | None = None
) -> list[TreeNode]:
    """The path below the root that takes the child with the largest key at every step, the oldest on a tie.

    With `allows` only children for which it is true are looked at.
    """
    nodes: list[TreeNode] = []
    children = tree.root.children
    while allowed := [child for child in children.values() if allows is None or allows(child)]:
        nodes.append(max(allowed, key=key))
        children = nodes[-1].children
    return nodes
