"""What of the live tree goes to the verifier: nodes likely enough to be worth a place in a pass, once."""

from collections.abc import Sequence
from typing import Final

from cosine_p2p.speculation.fusion import FusedView
from cosine_p2p.strategies.base import SendTree
from cosine_p2p.tree import LiveTree, TreeNode
from cosine_protocol.nodes import BASE, MAX_BLOCK_NODES, Node

MIN_PATH_PROBABILITY: Final = 0.005
RESEND_CHANGE: Final = 0.1
BLOCK_NODES: Final = 32


class Forwarder:
    """Remembers what the verifier was sent of one live tree, and with which probability."""

    def __init__(self, tree: LiveTree) -> None:
        self._tree = tree
        self._sent: dict[bytes, float] = {}

    def forget(self) -> None:
        """The verifier knows nothing: it is another one."""
        self._sent.clear()

    def prune(self) -> None:
        """Forget what the tree has dropped."""
        self._sent = {digest: p for digest, p in self._sent.items() if digest in self._tree}

    def blocks(self, view: FusedView, touched: Sequence[TreeNode]) -> list[SendTree]:
        """What of `touched` is new to the verifier or has changed, connected to bases that it knows."""
        wanted = [node for node in touched if self._is_worth_sending(view, node)]
        return [
            self._block(view, wanted[start : start + BLOCK_NODES]) for start in range(0, len(wanted), BLOCK_NODES)
        ]

    def _is_worth_sending(self, view: FusedView, node: TreeNode) -> bool:
        if node.digest not in self._tree or view.path_probability(node) < MIN_PATH_PROBABILITY:
            return False
        known = self._sent.get(node.digest)
        return known is None or abs(known - view.conditional(node)) >= RESEND_CHANGE

    def _block(self, view: FusedView, wanted: list[TreeNode]) -> SendTree:
        """One block that holds the wanted nodes and what connects them below their common ancestor."""
        paths = [[step.digest for step in self._tree.path(node.digest)] for node in wanted]
        shared = self._known_length(paths)
        digests = list(dict.fromkeys(digest for path in paths for digest in path[shared:]))[:MAX_BLOCK_NODES]
        index = {digest: number for number, digest in enumerate(digests)}
        base = paths[0][shared - 1] if shared else self._tree.root
        nodes, authors = [], []
        for digest in digests:
            node = self._tree.get(digest)
            assert node is not None
            confidence = view.conditional(node)
            self._sent[digest] = confidence
            nodes.append(Node(index.get(node.parent, BASE), node.token, confidence))
            authors.append(view.best_author(node))
        return SendTree(base, self._tree.position + shared, tuple(nodes), tuple(authors))

    def _known_length(self, paths: list[list[bytes]]) -> int:
        """How many first steps all paths share and the verifier was sent, leaving every path its last step."""
        shortest = min(map(len, paths))
        known = 0
        while known < shortest - 1 and paths[0][known] in self._sent and len({path[known] for path in paths}) == 1:
            known += 1
        return known
