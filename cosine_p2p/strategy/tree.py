"""The live tree: all speculation in flight for one request (docs/design.md, "One live tree, addressed by digest").

Theory of operation
-------------------
The root is the last committed token; below it stand drafted tokens, each the child of the prefix that it continues.
A node is named by the digest of the prefix which it completes, so two drafts of the same continuation are one node,
whoever made them and wherever their blocks began, and the same token at two places is two nodes. What authors think
of a node, their draft probabilities, is kept by author: the tree neither weighs nor chooses.

Three things change it.

- `attach` takes a draft: a block of nodes below a base. Where the base stands in the tree (or is its root), the
  block is grafted at once. Where it was committed past, within the last `MAX_TREE_DEPTH` tokens, the block counts
  as far as it follows what was committed since: it is cut to that, and grafted at the root. Where it is not known,
  but may become so, the block waits, the oldest of `MAX_WAITING_BLOCKS` going first; whatever makes its base known
  grafts it. A block whose position is not that of its base is a mistake or a lie, and is ignored.
- `grow` adds one child, for a drafter that drafts into its own tree.
- `advance` commits tokens, one after the other: the child of that token becomes the root, without a parent, and all
  other children go with what hangs below them. A token that nobody drafted gets a node of its own. What waited and
  cannot come any more goes too.

So drafts may come late, early, twice or out of order, and the tree ends up the same. It may be held by a drafter, a
coordinator and a verifier at once, each with its own copy that never needs to agree with the others.

Bounds hold whatever peers send: `max_nodes` nodes below the root, `max_depth` tokens deep, so many waiting blocks
of at most `MAX_BLOCK_NODES` nodes. A full tree takes no new node, and gives none up, until the next commit.

What never happens: a node without its whole path to the root; a node that contradicts the committed tokens; a node
object that comes back once it was dropped, so that others may keep notes by node. To see which of theirs are gone,
they ask if its digest is still there.
"""

from collections import deque
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from cosine_protocol.digests import extend_digest
from cosine_protocol.limits import MAX_TREE_DEPTH
from cosine_protocol.nodes import BASE, MAX_BLOCK_NODES, Node, NodeBlock

MAX_LIVE_NODES: Final = 1024
"""Bounds memory: four times the nodes of the largest pass (`MAX_TREE_NODES`)."""
MAX_WAITING_BLOCKS: Final = 64
"""Bounds memory: far more than drafters send while a commit is on its way."""

UNKNOWN_TOKEN: Final = -1
"""The token of the first root: a tree knows the prefix before it by its digest only."""


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
        """The highest draft probability that any author gives; the node must have an author."""
        return max(self.draft_probabilities.values())

    def most_confident_author(
        self, among: Container[int] | None = None, *, weights: Mapping[int, float] | None = None
    ) -> int:
        """The author, one of `among`, with the highest draft probability; the lowest number on a tie.

        With `weights` each probability is weighted first, by 0 where an author has none. Raises `ValueError` if
        nobody qualifies.
        """
        values = self.draft_probabilities
        if weights is not None:
            values = {author: weights.get(author, 0.0) * value for author, value in values.items()}
        authors = [author for author in values if among is None or author in among]
        return max(authors, key=lambda author: (values[author], -author))


@dataclass(frozen=True, slots=True)
class Block:
    """A draft on its way: nodes below the prefix `base`, parents before children, and the author of each.

    `position` is the output position of the children of the base.
    """

    base: bytes
    position: int
    nodes: tuple[Node, ...]
    authors: tuple[int, ...]


class LiveTree:
    """Speculation below the committed prefix whose digest is given, `position` output tokens long.

    `root` is the last committed token, so that its children are what may come next; it is replaced by `advance`.
    `max_nodes` and `max_depth` bound what lies below it.
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
        """Output tokens committed: the position of the root's children."""
        return self.root.position + 1

    def __len__(self) -> int:
        """The nodes below the root."""
        return len(self._nodes) - 1

    def __contains__(self, digest: bytes) -> bool:
        """True for the root and every live node."""
        return digest in self._nodes

    def get(self, digest: bytes) -> TreeNode | None:
        """The root or live node of this digest."""
        return self._nodes.get(digest)

    def attach(
        self, base: bytes, position: int, nodes: NodeBlock | Sequence[Node], authors: Sequence[int]
    ) -> list[TreeNode]:
        """Add a draft; returns the nodes now known that were not, or that gained an author's draft probability.

        A draft whose base is unknown and not yet passed is kept for later; the oldest such goes first. One whose
        base was committed past lately counts as far as it follows the committed tokens.
        """
        block = Block(base, position, tuple(nodes), tuple(authors))
        if not self._is_known(base):
            if self.position <= position <= self.position + MAX_TREE_DEPTH:
                self._waiting = [*self._waiting[1 - MAX_WAITING_BLOCKS :], block]
            return []
        touched = self._graft(block)
        return touched + self._graft_waiting() if touched else touched

    def advance(self, tokens: Iterable[int]) -> list[TreeNode]:
        """Commit tokens: the root moves down, all that does not follow it goes; returns newly known nodes."""
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
        """The child of a live node, or of the root, for a token; None if it is new and the tree is full."""
        child = parent.children.get(token)
        if child is None:
            position = parent.position + 1
            if len(self) >= self._max_nodes or position >= self.position + self._max_depth:
                return None
            child = TreeNode(extend_digest(parent.digest, token), token, position, parent)
            self._nodes[child.digest] = parent.children[token] = child
        return child

    def clear(self) -> None:
        """Drop every node below the root."""
        self._forget(self.root.children.values())
        self.root.children.clear()

    def walk(self) -> Iterator[TreeNode]:
        """Every node below the root, parents before children."""
        queue = list(self.root.children.values())
        for node in queue:
            queue.extend(node.children.values())
            yield node

    def path(self, node: TreeNode) -> list[TreeNode]:
        """The nodes from below the root to a live node, which is included."""
        nodes = []
        while node.parent is not None:
            nodes.append(node)
            node = node.parent
        return nodes[::-1]

    def follow(self, tokens: Iterable[int]) -> list[TreeNode]:
        """The nodes below the root that these tokens spell, as far as there are any."""
        nodes: list[TreeNode] = []
        children = self.root.children
        for token in tokens:
            if token not in children:
                break
            nodes.append(children[token])
            children = nodes[-1].children
        return nodes

    def path_probabilities(self, conditional: Callable[[TreeNode], float | None]) -> dict[TreeNode, float]:
        """The path probability of every node below the root, parents first, given those of a node and its parent.

        Where `conditional` is None for a node, the node and all below it are left out.
        """
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
        """A draft whose base was committed past, cut to what extends the root."""
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
