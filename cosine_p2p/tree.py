"""The live tree: all speculation in flight for one request, rooted at the last committed token (DESIGN idea III).

Nodes are named by the digest of the prefix they complete, so a draft attaches wherever its base is known, in any
order and however late. Drafts whose base is not known yet wait in a bounded buffer.
"""

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

from cosine_protocol.digests import extend_digest, roll_digest
from cosine_protocol.limits import MAX_TREE_DEPTH
from cosine_protocol.nodes import BASE, Node, NodeBlock

MAX_LIVE_NODES: Final = 1024
MAX_WAITING_BLOCKS: Final = 64


@dataclass(slots=True)
class TreeNode:
    """One speculated token. `claims` holds each author's confidence in it, given its parent."""

    digest: bytes
    parent: bytes
    token: int
    position: int
    claims: dict[int, float]
    children: dict[int, bytes] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class WaitingBlock:
    """A draft whose base is not known yet."""

    base: bytes
    position: int
    nodes: tuple[Node, ...]
    authors: tuple[int, ...]


class LiveTree:
    """Speculation below the committed prefix whose digest is `root` and whose output length is `position`.

    A node at `position` p is the p-th output token (0-based). `attach` and `advance` return what became known.
    """

    def __init__(self, root: bytes, position: int = 0) -> None:
        self.root = root
        self.position = position
        self._nodes: dict[bytes, TreeNode] = {}
        self._root_children: dict[int, bytes] = {}
        self._waiting: list[WaitingBlock] = []
        self._passed: deque[bytes] = deque(maxlen=MAX_TREE_DEPTH)

    def __len__(self) -> int:
        return len(self._nodes)

    def __contains__(self, digest: bytes) -> bool:
        return digest == self.root or digest in self._nodes

    def get(self, digest: bytes) -> TreeNode | None:
        return self._nodes.get(digest)

    def children_of(self, digest: bytes) -> dict[int, bytes]:
        """Token -> digest of the children of a known prefix."""
        return self._root_children if digest == self.root else self._nodes[digest].children

    def child(self, digest: bytes, token: int) -> TreeNode | None:
        """The child of a known prefix by token."""
        found = self.children_of(digest).get(token)
        return None if found is None else self._nodes[found]

    def attach(
        self, base: bytes, position: int, nodes: NodeBlock | Sequence[Node], authors: Sequence[int]
    ) -> list[TreeNode]:
        """Add a draft; returns the nodes now known that were not, or that gained an author's claim.

        A draft whose base is unknown and not yet passed is kept for later; the oldest such goes first. One whose
        base was committed past lately counts as far as it follows the committed tokens.
        """
        block = WaitingBlock(base, position, tuple(nodes), tuple(authors))
        if not self._is_known(base):
            self._wait(block)
            return []
        touched = self._graft(block)
        return touched + self._retry() if touched else touched

    def advance(self, tokens: Iterable[int]) -> list[TreeNode]:
        """Commit tokens: the root moves down, all that does not follow it goes; returns newly known nodes."""
        for token in tokens:
            self._step(token)
        touched = self._retry()
        self._waiting = [block for block in self._waiting if block.position >= self.position]
        return touched

    def path(self, digest: bytes) -> list[TreeNode]:
        """The nodes from below the root to a known node, both ends included."""
        nodes = []
        while digest != self.root:
            nodes.append(self._nodes[digest])
            digest = nodes[-1].parent
        return nodes[::-1]

    def walk(self) -> Iterator[TreeNode]:
        """Every live node, parents before children."""
        queue = list(self._root_children.values())
        for digest in queue:
            node = self._nodes[digest]
            queue.extend(node.children.values())
            yield node

    def _wait(self, block: WaitingBlock) -> None:
        if self.position <= block.position <= self.position + MAX_TREE_DEPTH:
            self._waiting = [*self._waiting[1 - MAX_WAITING_BLOCKS :], block]

    def _retry(self) -> list[TreeNode]:
        touched: list[TreeNode] = []
        progressed = True
        while progressed:
            ready = [block for block in self._waiting if self._is_known(block.base)]
            self._waiting = [block for block in self._waiting if not self._is_known(block.base)]
            progressed = bool(ready)
            for block in ready:
                touched.extend(self._graft(block))
        return touched

    def _is_known(self, digest: bytes) -> bool:
        return digest in self or digest in self._passed

    def _caught_up(self, block: WaitingBlock) -> WaitingBlock:
        """A draft whose base was committed past, cut to what extends the root."""
        digests: list[bytes] = []
        kept: dict[int, int] = {}
        nodes: list[Node] = []
        authors: list[int] = []
        is_placed = block.position == self.position - len(self._passed) + self._passed.index(block.base)
        for index, (node, author) in enumerate(zip(block.nodes, block.authors, strict=True)):
            parent = block.base if node.parent == BASE else digests[node.parent]
            digests.append(extend_digest(parent, node.token))
            if is_placed and (parent == self.root or node.parent in kept):
                kept[index] = len(nodes)
                nodes.append(Node(kept.get(node.parent, BASE), node.token, node.confidence))
                authors.append(author)
        return WaitingBlock(self.root, self.position, tuple(nodes), tuple(authors))

    def _graft(self, block: WaitingBlock) -> list[TreeNode]:
        if block.base in self._passed:
            block = self._caught_up(block)
        if block.position != self._length_at(block.base):
            return []
        digests: list[bytes | None] = []
        touched = []
        for node, author in zip(block.nodes, block.authors, strict=True):
            parent = block.base if node.parent == BASE else digests[node.parent]
            grown = None if parent is None else self._grow(parent, node, author)
            digests.append(None if grown is None else grown.digest)
            if grown is not None:
                touched.append(grown)
        return touched

    def _length_at(self, digest: bytes) -> int:
        return self.position if digest == self.root else self._nodes[digest].position + 1

    def _grow(self, parent: bytes, node: Node, author: int) -> TreeNode | None:
        known = self.child(parent, node.token)
        if known is not None:
            known.claims[author] = node.confidence
            return known
        position = self._length_at(parent)
        if len(self._nodes) >= MAX_LIVE_NODES or position >= self.position + MAX_TREE_DEPTH:
            return None
        grown = TreeNode(extend_digest(parent, node.token), parent, node.token, position, {author: node.confidence})
        self._nodes[grown.digest] = grown
        self.children_of(parent)[node.token] = grown.digest
        return grown

    def _step(self, token: int) -> None:
        self._passed.append(self.root)
        chosen = self._root_children.pop(token, None)
        for lost in self._root_children.values():
            self._drop(lost)
        if chosen is None:
            self.root = roll_digest(self.root, [token])
            self._root_children = {}
        else:
            self.root = chosen
            self._root_children = self._nodes.pop(chosen).children
        self.position += 1

    def _drop(self, digest: bytes) -> None:
        pending = [digest]
        while pending:
            pending.extend(self._nodes.pop(pending.pop()).children.values())
