"""The part of the live tree that goes to the verifier: nodes likely enough to be verified, each once."""

from collections.abc import Sequence
from typing import Final

from cosine_p2p.speculation.block import block_below, connected
from cosine_p2p.speculation.fusion import FusedView
from cosine_p2p.speculation.tree import LiveTree, TreeNode
from cosine_p2p.strategies.base import SendTree
from cosine_p2p.strategies.tree_cuts import CLIENT_MIN_PATH_PROBABILITY

RESEND_CHANGE: Final = 0.1
"""A choice: a smaller change of a probability hardly changes what the verifier selects."""
BLOCK_NODES: Final = 32
"""A choice: most of a pass's nodes in one message, and far below the bound of a block."""


class Forwarder:
    """Remembers what the verifier was sent of one live tree, and with which probability.

    Paths below `min_path_probability` are kept until a commit makes them likelier.
    """

    def __init__(self, tree: LiveTree) -> None:
        self._tree = tree
        self.min_path_probability = CLIENT_MIN_PATH_PROBABILITY
        self._sent: dict[TreeNode, float] = {}

    def forget(self) -> None:
        """The verifier knows nothing: it is another one."""
        self._sent.clear()

    def prune(self) -> None:
        """Forget what the tree has dropped."""
        self._sent = {node: known for node, known in self._sent.items() if node.digest in self._tree}

    def blocks(self, view: FusedView, touched: Sequence[TreeNode]) -> list[SendTree]:
        """Blocks of those live nodes that are new to the verifier or have changed, with what connects them."""
        wanted = []
        for node in touched:
            known = self._sent.get(node)
            is_news = known is None or abs(known - view.conditional(node)) >= RESEND_CHANGE
            if is_news and view.path_probability(node) >= self.min_path_probability:
                wanted.append(node)
        sends = []
        for start in range(0, len(wanted), BLOCK_NODES):
            part = wanted[start : start + BLOCK_NODES]
            base, nodes = connected(self._tree, part, is_known=self._sent.__contains__)
            self._sent |= {node: view.conditional(node) for node in nodes}
            block = block_below(base, nodes, lambda node: (view.best_author(node), self._sent[node]))
            sends.append(SendTree(block))
        return sends
