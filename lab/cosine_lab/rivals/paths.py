"""Lines through a live tree along which rivals draft and verify, and blocks of one line."""

from collections.abc import Callable, Sequence
from typing import Any

from cosine_p2p.strategy.tree import Block, LiveTree, TreeNode
from cosine_protocol.nodes import Node


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


def chain_block(base: bytes, position: int, chain: Sequence[tuple[int, float, int]]) -> Block:
    """A block of one chain: each token with its draft probability and the author credited for it."""
    nodes = tuple(Node(index - 1, token, probability) for index, (token, probability, _) in enumerate(chain))
    return Block(base, position, nodes, tuple(author for _, _, author in chain))
