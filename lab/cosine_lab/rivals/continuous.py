"""Drafts of one drafter for a verifier that never waits, which published designs share on free pacing.

The drafter follows every commit and is never waited for. What it drafts goes to the verifier as it comes, and each
pass takes along what has arrived; a pass without any is one of plain decoding.
"""

from abc import ABC, abstractmethod

from cosine_lab.rivals.lone_drafter import LoneDrafter
from cosine_p2p.strategy.base import (
    Action,
    Committed,
    DrafterLost,
    DraftersAllowed,
    DrafterStarted,
    Event,
    FragmentReceived,
    SendTree,
    Tick,
    VerifierOpened,
)
from cosine_p2p.strategy.tree import LiveTree, TreeNode
from cosine_protocol.limits import MAX_TREE_DEPTH


class Continuous(ABC):
    """The live tree of a request and what of it the verifier was sent. A strategy says what to send when."""

    def __init__(self, root: bytes, position: int = 0, *, author: int | None, width_nodes: int) -> None:
        """`author` drafts, or for None the best, `width_nodes` nodes a pass."""
        self._tree = LiveTree(root, position)
        self._drafter = LoneDrafter(self._tree, author=author, depth_tokens=MAX_TREE_DEPTH, width_nodes=width_nodes)
        self._is_open = False
        self._sent: set[TreeNode] = set()

    @abstractmethod
    def _unsent(self) -> list[SendTree]:
        """What the verifier is to get now, each node once; all of it is noted in `_sent`."""

    def _restart(self) -> None:
        """Note that the root or what was sent has changed."""
        return

    def on(self, event: Event, now_s: float) -> list[Action]:
        del now_s
        match event:
            case VerifierOpened():
                self._is_open = True
                self._sent.clear()
                self._restart()
                return self._forward()
            case DrafterStarted():
                return self._drafter.join(event)
            case DrafterLost(author):
                return self._drafter.leave(author)
            case FragmentReceived(author, draft):
                if author != self._drafter.drafting:
                    return []
                self._tree.attach(draft.base, draft.position, draft.nodes, [author] * len(draft.nodes))
                return self._forward()
            case Committed():
                return self._commit(event)
            case DraftersAllowed() | Tick():
                return []

    def _commit(self, event: Committed) -> list[Action]:
        self._drafter.learn(event.tokens)
        self._tree.advance(event.tokens)
        self._sent = {node for node in self._sent if node.digest in self._tree}
        self._restart()
        return [*self._drafter.advance(event), *self._forward()]

    def _forward(self) -> list[Action]:
        return list(self._unsent()) if self._is_open else []


def credit(node: TreeNode) -> tuple[int, float]:
    """The author to whom a node is credited, and its draft probability."""
    return node.most_confident_author(), node.draft_probability
