"""Continuous asynchronous speculation (PipeInfer, arXiv 2407.11798) for a verifier of one stage.

The verifier runs a single-token pass as soon as the last has ended and takes along every micro-batch that has
arrived; the drafter goes on from the tail of its last speculation while its confidence holds. The paper also
abandons passes over invalidated micro-batches midway, which frees later stages of a pipeline; here every pass also
carries the single-token run, which is always wanted, so abandoning one could only lose time.
"""

from dataclasses import dataclass

from cosine_p2p.strategies.base import (
    Action,
    Committed,
    Drafted,
    DrafterLost,
    DrafterStarted,
    Event,
    Opened,
    SendTree,
    Tick,
)
from cosine_p2p.strategies.lone_drafter import LoneDrafter
from cosine_p2p.tree import LiveTree, TreeNode
from cosine_protocol.limits import MAX_TREE_DEPTH
from cosine_protocol.nodes import BASE, Node


@dataclass(frozen=True, slots=True, kw_only=True)
class PipeInferOptions:
    """The constants of the authors' program; published are ranges, so they are to be swept.

    A draft goes on while its confidence is at least `p_accept` + p_adjust, and branches where another child's is
    above `p_split` + p_adjust, into at most `n_parallel` lines. p_adjust = iter `p_recovery` - n_reject `p_decay`:
    iter counts micro-batches since the last validated token, n_reject rejections in a row. `draft_tokens` is the
    depth of a micro-batch. `author` drafts, or for None the best.
    """

    author: int | None = None
    draft_tokens: int = 1
    p_accept: float = 0.1
    p_split: float = 0.8
    p_recovery: float = 0.0
    p_decay: float = 0.0
    n_parallel: int = 3
    depth_tokens: int = MAX_TREE_DEPTH


class PipeInfer:
    """Sends micro-batches under the reactive threshold; on a miss all behind it is void and drafting restarts."""

    def __init__(self, root: bytes, position: int = 0, options: PipeInferOptions | None = None) -> None:
        self._options = options or PipeInferOptions()
        self._tree = LiveTree(root, position)
        self._drafter = LoneDrafter(
            self._tree,
            author=self._options.author,
            depth_tokens=self._options.depth_tokens,
            width_nodes=self._options.n_parallel,
        )
        self._is_open = False
        self._sent: set[bytes] = set()
        self._tail = root
        self._launched = 0
        self._rejections = 0

    def on(self, event: Event, now_s: float) -> list[Action]:
        del now_s
        match event:
            case Opened():
                self._is_open = True
                self._sent.clear()
                self._restart()
                return self._forward()
            case DrafterStarted():
                return self._drafter.join(event)
            case DrafterLost(author):
                return self._drafter.leave(author)
            case Drafted(author, draft):
                if author != self._drafter.drafting:
                    return []
                self._tree.attach(draft.base, draft.position, draft.nodes, [author] * len(draft.nodes))
                return self._forward()
            case Committed():
                return self._commit(event)
            case Tick():
                return []

    def _commit(self, event: Committed) -> list[Action]:
        self._drafter.learn(event.tokens)
        self._rejections = self._rejections + 1 if self._is_miss(event.tokens) else 0
        self._tree.advance(event.tokens)
        self._sent = {digest for digest in self._sent if digest in self._tree}
        self._restart()
        return [*self._drafter.advance(event), *self._forward()]

    def _is_miss(self, tokens: tuple[int, ...]) -> bool:
        """Whether the committed tokens leave what was sent before its end."""
        digest = self._tree.root
        for token in tokens:
            sent = [child for child in self._tree.children_of(digest).values() if child in self._sent]
            child = self._tree.child(digest, token)
            if child is None or child.digest not in self._sent:
                return bool(sent)
            digest = child.digest
        return False

    def _restart(self) -> None:
        """The tail is the end of the most confident line sent that still holds, and iter starts anew."""
        self._launched = 0
        self._tail = self._tree.root
        while sent := [node for node in self._children(self._tail) if node.digest in self._sent]:
            self._tail = sent[0].digest

    def _forward(self) -> list[Action]:
        """Micro-batches as far as drafts and confidence go."""
        actions: list[Action] = []
        while self._is_open and (batch := self._next_batch()) is not None:
            actions.append(batch)
            self._launched += 1
        return actions

    def _next_batch(self) -> SendTree | None:
        """The micro-batch below the tail, None where it is still being drafted or not worth it."""
        options = self._options
        adjust = self._launched * options.p_recovery - self._rejections * options.p_decay
        lines: list[list[TreeNode]] = [[]]
        for _ in range(options.draft_tokens):
            extended = [
                longer
                for line in lines
                for longer in self._extended(line, accept=options.p_accept + adjust, split=options.p_split + adjust)
            ]
            grown = extended[: options.n_parallel]
            if not grown or len(grown[0]) == len(lines[0]):
                break
            lines = grown
        main = lines[0]
        is_drafting = len(main) < options.draft_tokens and not self._children(self._end_of(main))
        return None if is_drafting or not main else self._launch(lines)

    def _extended(self, line: list[TreeNode], *, accept: float, split: float) -> list[list[TreeNode]]:
        """A line with its next token and the branches next to it, or as it is where it ends."""
        children = self._children(self._end_of(line))
        if accept >= 1.0 or not children or _confidence(children[0]) < accept:
            return [line]
        return [[*line, node] for rank, node in enumerate(children) if not rank or _confidence(node) > split]

    def _launch(self, lines: list[list[TreeNode]]) -> SendTree:
        nodes = list({node.digest: node for line in lines for node in line}.values())
        index = {node.digest: number for number, node in enumerate(nodes)}
        base, position = self._tail, nodes[0].position
        self._sent.update(index)
        self._tail = lines[0][-1].digest
        block = tuple(Node(index.get(node.parent, BASE), node.token, _confidence(node)) for node in nodes)
        return SendTree(base, position, block, tuple(_author(node) for node in nodes))

    def _end_of(self, line: list[TreeNode]) -> bytes:
        return line[-1].digest if line else self._tail

    def _children(self, digest: bytes) -> list[TreeNode]:
        """Drafted children of a prefix, the most confident first."""
        children = self._tree.children_of(digest)
        nodes = [node for token in children if (node := self._tree.child(digest, token)) is not None]
        return sorted(nodes, key=lambda node: -_confidence(node))


def _confidence(node: TreeNode) -> float:
    return max(node.claims.values())


def _author(node: TreeNode) -> int:
    return max(node.claims, key=lambda author: (node.claims[author], -author))
