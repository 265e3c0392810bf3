"""The live tree: all speculation in flight for one request (docs/design.md, "One live tree, addressed by digest").

Theory of operation. The root is the last committed token; below it stand drafted tokens, each the child of the
prefix that it continues. A node is named by the digest of the prefix which it completes, so two drafts of the same
continuation are one node. Its draft probabilities are kept by author: the tree neither weighs nor chooses.

- `attach` grafts a block of nodes below a base in the tree. Where the base was committed past, within the last
`MAX_TREE_DEPTH` tokens, the block is cut to what follows the committed tokens. Where it is not known yet, the block
waits, the oldest of `MAX_WAITING_BLOCKS` going first. A block whose position is not that of its base is ignored.

- `grow` adds one child, for a drafter that drafts into its own tree.

- `advance` commits tokens: the child of each token becomes the root, a new node where nobody drafted it, and all
other children go. What waited and cannot come any more goes too.

So drafts may come late, early, twice or out of order, and the tree ends up the same. Several peers may hold copies
that never need to agree. Bounds hold whatever peers send: `max_nodes` nodes below the root, `max_depth` tokens
deep. A full tree takes no new node until the next commit.

Never: a node without its whole path to the root; a node that contradicts the committed tokens; a node object that
comes back once it was dropped.
"""

from collections import deque
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from cosine_protocol.digests import extend_digest
from cosine_protocol.limits import MAX_TREE_DEPTH
from cosine_protocol.nodes import BASE, MAX_BLOCK_NODES, Node, NodeBlock

MAX_LIVE_NODES: Final = 1024  # Bounds memory: four times the nodes of the largest pass (`MAX_TREE_NODES`).
MAX_WAITING_BLOCKS: Final = 64  # Bounds memory: far more than drafters send while a commit is on its way.

UNKNOWN_TOKEN: Final = -1  # The token of the first root: a tree knows the prefix before it by its digest only.


@dataclass(slots=True, eq=False)
class TreeNode:
    """A token of the tree, the child of its prefix; nodes are equal only to themselves.

    `position` is its index in the output (0-based), `digest` that of the prefix which ends with it. Only the root
    has no parent. `draft_probabilities` holds, by author, the probability of the token given its parent.
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
        """By (weighted) probability, the lowest number on a tie. Raises `ValueError` without any."""
        values = self.draft_probabilities
        if weights is not None:
            values = {author: weights.get(author, 0.0) * value for author, value in values.items()}
        authors = [author for author in values if among is None or author in among]
        return max(authors, key=lambda author: (values[author], -author))


@dataclass(frozen=True, slots=True)
class Block:
    """Nodes below the prefix `base`, parents first, with their authors; `position` is that of its children."""

    base: bytes
    position: int
    nodes: tuple[Node, ...]
    authors: tuple[int, ...]


class LiveTree:
    """Speculation below the committed prefix of `digest`, `position` tokens long; `advance` replaces its `root`."""

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
        """Output tokens committed: the position of the root's children."""
        return self.root.position + 1

    def __len__(self) -> int:
        """The nodes below the root."""
        return len(self._nodes) - 1

    def __contains__(self, digest: bytes) -> bool:
        return digest in self._nodes

    def get(self, digest: bytes) -> TreeNode | None:
        return self._nodes.get(digest)

    def attach(
        self, base: bytes, position: int, nodes: NodeBlock | Sequence[Node], authors: Sequence[int]
    ) -> list[TreeNode]:
        """Add a draft; returns nodes that are new or gained a draft probability. See the module for other bases."""
        block = Block(base, position, tuple(nodes), tuple(authors))
        if not self._is_known(base):
            if self.position <= position <= self.position + MAX_TREE_DEPTH:
                self._waiting = [*self._waiting[1 - MAX_WAITING_BLOCKS :], block]
            return []
        touched = self._graft(block)
        return touched + self._graft_waiting() if touched else touched

    def advance(self, tokens: Iterable[int]) -> list[TreeNode]:
        """Commit tokens; returns newly known nodes."""
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

    def grow(self, parent: TreeNode, token: int) -> TreeNode | None:
        """The child of a node for a token; None if it is new and the tree is full."""
        child = parent.children.get(token)
        if child is None:
            position = parent.position + 1
            if len(self) >= self._max_nodes or position >= self.position + self._max_depth:
                return None
            child = TreeNode(extend_digest(parent.digest, token), token, position, parent)
            self._nodes[child.digest] = parent.children[token] = child
        return child

    def clear(self) -> None:
        self._forget(self.root.children.values())
        self.root.children.clear()

    def walk(self) -> Iterator[TreeNode]:
        """Every node below the root, parents before children."""
        queue = list(self.root.children.values())
        for node in queue:
            queue.extend(node.children.values())
            yield node

    def path(self, node: TreeNode) -> list[TreeNode]:
        """The nodes from below the root to a live node, inclusive."""
        nodes = []
        while node.parent is not None:
            nodes.append(node)
            node = node.parent
        return nodes[::-1]

    def follow(self, tokens: Iterable[int]) -> list[TreeNode]:
        """The nodes below the root that these tokens spell."""
        nodes: list[TreeNode] = []
        children = self.root.children
        for token in tokens:
            if token not in children:
                break
            nodes.append(children[token])
            children = nodes[-1].children
        return nodes

    def path_probabilities(self, conditional: Callable[[TreeNode], float | None]) -> dict[TreeNode, float]:
        """By node, parents first; where `conditional` is None a node is left out, with all below."""
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
        for node, author in zip(block.nodes, block.authors, strict=True):
            parent = base if node.parent == BASE else places[node.parent]
            place = None if parent is None else self.grow(parent, node.token)
            if place is not None:
                place.draft_probabilities[author] = node.confidence
            places.append(place)
        return [place for place in places if place is not None]

    def _caught_up(self, block: Block) -> Block:
        digests: list[bytes] = []
        kept: dict[int, int] = {}
        nodes: list[Node] = []
        authors: list[int] = []
        is_placed = block.position == self.position - len(self._passed) + self._passed.index(block.base)
        for index, (node, author) in enumerate(zip(block.nodes, block.authors, strict=True)):
            parent = block.base if node.parent == BASE else digests[node.parent]
            digests.append(extend_digest(parent, node.token))
            if is_placed and (parent == self.root.digest or node.parent in kept):
                kept[index] = len(nodes)
                nodes.append(Node(kept.get(node.parent, BASE), node.token, node.confidence))
                authors.append(author)
        return Block(self.root.digest, self.position, tuple(nodes), tuple(authors))

    def _forget(self, tops: Iterable[TreeNode]) -> None:
        pending = list(tops)
        while pending:
            node = pending.pop()
            del self._nodes[node.digest]
            pending.extend(node.children.values())


def block_below(
    base: TreeNode, nodes: Iterable[TreeNode], credit: Callable[[TreeNode], tuple[int, float]]
) -> Block:
    """A block of nodes, each after its parent, below `base`; `credit` gives a node's author and probability."""
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
    """A base (the deepest that is known, with all above) and up to a block of what connects the wanted ones."""
    paths = [tree.path(node) for node in wanted]
    shared = 0
    while shared < min(map(len, paths)) - 1 and is_known(paths[0][shared]):
        if len({path[shared] for path in paths}) > 1:
            break
        shared += 1
    base = paths[0][shared - 1] if shared else tree.root
    nodes = dict.fromkeys(node for path in paths for node in path[shared:])
    return base, list(nodes)[:MAX_BLOCK_NODES]
