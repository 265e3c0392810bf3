"""Drafts of one drafter under free pacing: the verifier never waits, and each pass uses the drafts that arrived."""

from abc import ABC, abstractmethod

from cosine_p2p.strategy.base import (
    Action,
    Committed,
    DrafterLost,
    DraftersAllowed,
    DrafterStarted,
    Event,
    FragmentReceived,
    ReleaseDrafter,
    SendAdvance,
    SendAssign,
    SendTree,
    Tick,
    VerifierOpened,
)
from cosine_p2p.strategy.tree import LiveTree, TreeNode
from cosine_protocol.draft import MAX_TREE_DEPTH, MAX_WINDOW_NODES


class Continuous(ABC):
    """The live tree of a request and the nodes sent to the verifier. A subclass decides what to send."""

    def __init__(self, root: bytes, position: int = 0, *, author: int | None, width_nodes: int) -> None:
        """`author` drafts, or for None the one that knows the prompt best, `width_nodes` nodes per pass."""
        self._tree = LiveTree(root, position)
        self._author = author
        self._width_nodes = width_nodes
        self._drafting: int | None = None
        self._following: dict[int, DrafterStarted] = {}
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
                if self._author not in (None, event.author):
                    return [ReleaseDrafter(event.author, f"author {self._author} drafts alone")]
                self._following[event.author] = event
                return self._assign_best()
            case DrafterLost(author):
                self._following.pop(author, None)
                self._drafting = None if author == self._drafting else self._drafting
                return self._assign_best()
            case FragmentReceived(author, draft):
                if author != self._drafting:
                    return []
                self._tree.attach(draft.base, draft.position, draft.nodes, [author] * len(draft.nodes))
                return self._forward()
            case Committed():
                return self._commit(event)
            case DraftersAllowed() | Tick():
                return []

    def _commit(self, event: Committed) -> list[Action]:
        self._tree.advance(event.tokens)
        self._sent = {node for node in self._sent if node.digest in self._tree}
        self._restart()
        followers = sorted(self._following) if event.tokens else []
        advances = [SendAdvance(author, event.position, event.tokens) for author in followers]
        return [*advances, *self._forward()]

    def _assign_best(self) -> list[Action]:
        """Assign the drafter with the best likelihood of the prompt in place of another one."""
        best = min(self._following.values(), key=lambda drafter: drafter.prompt_nll, default=None)
        if best is None or best.author == self._drafting:
            return []
        actions: list[Action] = []
        if self._drafting is not None:
            del self._following[self._drafting]
            actions.append(ReleaseDrafter(self._drafting, f"author {best.author} drafts instead"))
        self._drafting = best.author
        why, at = "it knows the prompt best", self._tree
        window = (MAX_TREE_DEPTH, self._width_nodes, MAX_WINDOW_NODES)
        return [*actions, SendAssign(best.author, at.root.digest, at.position, *window, why)]

    def _forward(self) -> list[Action]:
        return list(self._unsent()) if self._is_open else []


def credit(node: TreeNode) -> tuple[int, float]:
    """Return the author that a node is credited to, and its draft probability."""
    return node.most_confident_author(), node.draft_probability
