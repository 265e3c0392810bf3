"""Nodes of a live tree as one block for the wire: what connects them, below one base."""

from collections.abc import Callable, Iterable, Sequence

from cosine_p2p.speculation.tree import Block, LiveTree, TreeNode
from cosine_protocol.nodes import BASE, MAX_BLOCK_NODES, Node


def block_below(
    base: TreeNode, nodes: Iterable[TreeNode], credit: Callable[[TreeNode], tuple[int, float]]
) -> Block:
    """A block of nodes below `base`, parents before children; `credit` gives a node's author and probability.

    The parent of each node is the base or one of the nodes before it.
    """
    index = {base: BASE}
    drafted: list[Node] = []
    authors: list[int] = []
    for node in nodes:
        assert node.parent is not None
        author, probability = credit(node)
        drafted.append(Node(index[node.parent], node.token, probability))
        authors.append(author)
        index[node] = len(index) - 1
    return Block(base.digest, base.position + 1, tuple(drafted), tuple(authors))


def connected(
    tree: LiveTree, wanted: Sequence[TreeNode], *, is_known: Callable[[TreeNode], bool] = lambda node: True
) -> tuple[TreeNode, list[TreeNode]]:
    """A base, and all nodes that connect the wanted ones with it, parents first: as many as a block holds.

    The base is the deepest node above all of them such that it and all before it are known to the receiver.
    """
    paths = [tree.path(node) for node in wanted]
    shared = 0
    while shared < min(map(len, paths)) - 1 and is_known(paths[0][shared]):
        if len({path[shared] for path in paths}) > 1:
            break
        shared += 1
    base = paths[0][shared - 1] if shared else tree.root
    nodes = dict.fromkeys(node for path in paths for node in path[shared:])
    return base, list(nodes)[:MAX_BLOCK_NODES]


def chain_block(base: bytes, position: int, chain: Sequence[tuple[int, float, int]]) -> Block:
    """A block of one chain: each token with its draft probability and the author credited for it."""
    nodes = tuple(Node(index - 1, token, probability) for index, (token, probability, _) in enumerate(chain))
    return Block(base, position, nodes, tuple(author for _, _, author in chain))
