"""The live tree: all drafts in flight for one request (docs/design.md, "One live tree, addressed by digest").

The root is the last committed token; below it are drafted tokens, each the child of the prefix that it continues.
A node's key is the digest of the prefix that it completes, so two drafts of the same continuation are one node,
with a probability for each author. Drafts may arrive late, early, twice or out of order with the same result, and
copies at several peers need not agree.
"""

from collections import deque
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from cosine_protocol.digests import extend_digest
from cosine_protocol.draft import BASE, MAX_BLOCK_NODES, MAX_TREE_DEPTH, Node, NodeBlock

MAX_LIVE_NODES: Final = 1024  # Bounds memory: four times the nodes of the largest pass (`MAX_TREE_NODES`).
MAX_WAITING_BLOCKS: Final = 64  # Bounds memory: far more than drafters send while a commit is on its way.

UNKNOWN_TOKEN: Final = -1  # The token of the first root, of which only the digest is known.


@dataclass(slots=True, eq=False)
class TreeNode:
    """A token of the tree, the child of its prefix; nodes compare by identity.

    `position` is its index in the output (0-based), `digest` that of the prefix that ends with it. Only the root
    has no parent. `draft_probabilities` has, by author, the probability of the token given its parent.
    """

    digest: bytes
    token: int
    position: int
    parent: "TreeNode | None" = field(default=None, repr=False)
    children: "dict[int, TreeNode]" = field(default_factory=dict, repr=False)
    draft_probabilities: dict[int, float] = field(default_factory=dict)

    @property
    def draft_probability(self) -> float:
        """The highest draft probability; the node must have an author."""
        return max(self.draft_probabilities.values())

    def most_confident_author(
        self, among: Container[int] | None = None, *, weights: Mapping[int, float] | None = None
    ) -> int:
        """Return the author of the highest (weighted) probability, the lowest on a tie. Raises `ValueError`."""
        values = self.draft_probabilities
        if weights is not None:
            values = {author: weights.get(author, 0.0) * value for author, value in values.items()}
        authors = [author for author in values if among is None or author in among]
        return max(authors, key=lambda author: (values[author], -author))


@dataclass(frozen=True, slots=True)
class Block:
    """Nodes below the prefix `base`, parents first, with their authors; `position` is that of its children.

    `digests` are those of the nodes; without them the tree that attaches the block computes them.
    """

    base: bytes
    position: int
    nodes: tuple[Node, ...]
    authors: tuple[int, ...]
    digests: tuple[bytes, ...] = ()


def digests_of(base: bytes, nodes: Iterable[Node]) -> tuple[bytes, ...]:
    """Return the digests of the prefixes that nodes below `base` complete; parents come first."""
    digests: list[bytes] = []
    for node in nodes:
        digests.append(extend_digest(base if node.parent == BASE else digests[node.parent], node.token))
    return tuple(digests)


class LiveTree:
    """The drafts below the committed prefix of `digest`, `position` tokens long; `advance` replaces its `root`.

    At most `max_nodes` nodes, `max_depth` tokens deep; a full tree accepts no new node until the next commit.
    """

    def __init__(
        self,
        digest: bytes,
        position: int = 0,
        *,
        last_token: int = UNKNOWN_TOKEN,
        max_nodes: int = MAX_LIVE_NODES,
        max_depth: int = MAX_TREE_DEPTH,
    ) -> None:
        self.root = TreeNode(digest, last_token, position - 1)
        self._max_nodes = max_nodes
        self._max_depth = max_depth
        self._nodes = {digest: self.root}
        self._waiting: list[Block] = []
        self._passed: deque[bytes] = deque(maxlen=MAX_TREE_DEPTH)

    @property
    def position(self) -> int:
        """The number of committed output tokens: the position of the root's children."""
        return self.root.position + 1

    def __len__(self) -> int:
        return len(self._nodes) - 1

    def __contains__(self, digest: bytes) -> bool:
        return digest in self._nodes

    def attach(
        self,
        base: bytes,
        position: int,
        nodes: NodeBlock | Sequence[Node],
        authors: Sequence[int],
        digests: tuple[bytes, ...] = (),
    ) -> list[TreeNode]:
        """Add a draft and return the nodes that are new or have a new draft probability.

        If the base is one of the last `MAX_TREE_DEPTH` committed prefixes, the draft is reduced to what follows the
        committed tokens; if it is unknown, the draft waits. A draft at another position than its base's is ignored.
        """
        block = Block(base, position, tuple(nodes), tuple(authors), digests)
        if not self._is_known(base):
            if self.position <= position <= self.position + MAX_TREE_DEPTH:
                self._waiting = [*self._waiting[1 - MAX_WAITING_BLOCKS :], block]
            return []
        touched = self._graft(block)
        return touched + self._graft_waiting() if touched else touched

    def advance(self, tokens: Iterable[int]) -> list[TreeNode]:
        """Commit tokens and return the nodes of blocks that waited for them."""
        for token in tokens:
            passed = self.root
            self._passed.append(passed.digest)
            del self._nodes[passed.digest]
            followed = passed.children.pop(token, None)
            self._forget(passed.children.values())
            if followed is None:
                followed = TreeNode(extend_digest(passed.digest, token), token, passed.position + 1)
                self._nodes[followed.digest] = followed
            followed.parent = None
            self.root = followed
        touched = self._graft_waiting()
        self._waiting = [block for block in self._waiting if block.position >= self.position]
        return touched

    def grow(self, parent: TreeNode, token: int, digest: bytes | None = None) -> TreeNode | None:
        """Return the child of a node for a token, new ones with this digest; None for a new one if it is full."""
        child = parent.children.get(token)
        if child is None:
            position = parent.position + 1
            if len(self) >= self._max_nodes or position >= self.position + self._max_depth:
                return None
            child = TreeNode(digest or extend_digest(parent.digest, token), token, position, parent)
            self._nodes[child.digest] = parent.children[token] = child
        return child

    def clear(self) -> None:
        self._forget(self.root.children.values())
        self.root.children.clear()

    def walk(self) -> Iterator[TreeNode]:
        """Yield every node below the root, parents before children."""
        queue = list(self.root.children.values())
        for node in queue:
            queue.extend(node.children.values())
            yield node

    def path(self, node: TreeNode) -> list[TreeNode]:
        """Return the nodes from below the root to a live node, inclusive."""
        nodes = []
        while node.parent is not None:
            nodes.append(node)
            node = node.parent
        return nodes[::-1]

    def follow(self, tokens: Iterable[int]) -> list[TreeNode]:
        """Return the nodes below the root that match these tokens."""
        nodes: list[TreeNode] = []
        children = self.root.children
        for token in tokens:
            if token not in children:
                break
            nodes.append(children[token])
            children = nodes[-1].children
        return nodes

    def path_probabilities(self, conditional: Callable[[TreeNode], float | None]) -> dict[TreeNode, float]:
        """Return probabilities by node, parents first, without nodes of `conditional` None and all below."""
        found = {self.root: 1.0}
        queue = list(self.root.children.values())
        for node in queue:
            assert node.parent is not None
            if (probability := conditional(node)) is not None:
                found[node] = found[node.parent] * probability
                queue.extend(node.children.values())
        del found[self.root]
        return found

    def _is_known(self, digest: bytes) -> bool:
        return digest in self._nodes or digest in self._passed

    def _graft_waiting(self) -> list[TreeNode]:
        touched: list[TreeNode] = []
        while ready := [block for block in self._waiting if self._is_known(block.base)]:
            self._waiting = [block for block in self._waiting if not self._is_known(block.base)]
            for block in ready:
                touched.extend(self._graft(block))
        return touched

    def _graft(self, block: Block) -> list[TreeNode]:
        if block.base in self._passed:
            block = self._caught_up(block)
        base = self._nodes[block.base]
        if block.position != base.position + 1:
            return []
        places: list[TreeNode | None] = []
        digests = block.digests or (None,) * len(block.nodes)
        for node, author, digest in zip(block.nodes, block.authors, digests, strict=True):
            parent = base if node.parent == BASE else places[node.parent]
            place = None if parent is None else self.grow(parent, node.token, digest)
            if place is not None:
                place.draft_probabilities[author] = node.confidence
            places.append(place)
        return [place for place in places if place is not None]

    def _caught_up(self, block: Block) -> Block:
        """Return the part of a block below a passed prefix that follows the root."""
        digests = block.digests or digests_of(block.base, block.nodes)
        kept: dict[int, int] = {}
        nodes: list[Node] = []
        is_placed = block.position == self.position - len(self._passed) + self._passed.index(block.base)
        for index, node in enumerate(block.nodes if is_placed else ()):
            parent = block.base if node.parent == BASE else digests[node.parent]
            if parent == self.root.digest or node.parent in kept:
                kept[index] = len(nodes)
                nodes.append(Node(kept.get(node.parent, BASE), node.token, node.confidence))
        authors = tuple(block.authors[index] for index in kept)
        return Block(
            self.root.digest, self.position, tuple(nodes), authors, tuple(digests[index] for index in kept)
        )

    def _forget(self, tops: Iterable[TreeNode]) -> None:
        pending = list(tops)
        while pending:
            node = pending.pop()
            del self._nodes[node.digest]
            pending.extend(node.children.values())


def block_below(
    base: TreeNode, nodes: Iterable[TreeNode], credit: Callable[[TreeNode], tuple[int, float]]
) -> Block:
    """Return a block of nodes, each after its parent, below `base`; `credit` returns author and probability."""
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
    """Return the deepest known base and at most a block of nodes that contain the wanted ones."""
    paths = [tree.path(node) for node in wanted]
    shared = 0
    while shared < min(map(len, paths)) - 1 and is_known(paths[0][shared]):
        if len({path[shared] for path in paths}) > 1:
            break
        shared += 1
    base = paths[0][shared - 1] if shared else tree.root
    nodes = dict.fromkeys(node for path in paths for node in path[shared:])
    return base, list(nodes)[:MAX_BLOCK_NODES]
