"""Drafts of one drafter under free pacing: the verifier never waits, and each pass uses the drafts that arrived."""

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
    """The live tree of a request and the nodes sent to the verifier. A subclass decides what to send."""

    def __init__(self, root: bytes, position: int = 0, *, author: int | None, width_nodes: int) -> None:
        """`author` drafts, or the best one for None, with `width_nodes` nodes per pass."""
        self._tree = LiveTree(root, position)
        self._drafter = LoneDrafter(self._tree, author=author, depth_tokens=MAX_TREE_DEPTH, width_nodes=width_nodes)
        self._is_open = False
        self._sent: set[TreeNode] = set()

    @abstractmethod
    def _unsent(self) -> list[SendTree]:
        """Return the trees to send now, each node once, and add their nodes to `_sent`."""

    def _restart(self) -> None:
        """Called when the root or `_sent` has changed."""
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
    """Return the author that a node is credited to, and its draft probability."""
    return node.most_confident_author(), node.draft_probability
