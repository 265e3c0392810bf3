"""Continuous asynchronous speculation (PipeInfer, arXiv 2407.11798) for a verifier of one stage.

The verifier runs a single-token pass as soon as the last has ended and takes along every micro-batch that has
arrived; the drafter goes on from the tail of its last speculation while its confidence holds. The paper also
abandons passes over invalidated micro-batches midway, which frees later stages of a pipeline; here every pass also
carries the single-token run, which is always wanted, so abandoning one could only lose time.
"""

from dataclasses import dataclass

from cosine_p2p.speculation.block import block_below
from cosine_p2p.speculation.tree import LiveTree, TreeNode
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
from cosine_p2p.strategies.published.lone_drafter import LoneDrafter
from cosine_protocol.limits import MAX_TREE_DEPTH


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
        self._sent: set[TreeNode] = set()
        self._tail = self._tree.root
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
        self._sent = {node for node in self._sent if node.digest in self._tree}
        self._restart()
        return [*self._drafter.advance(event), *self._forward()]

    def _is_miss(self, tokens: tuple[int, ...]) -> bool:
        """Whether the committed tokens leave what was sent before its end."""
        parent = self._tree.root
        for token in tokens:
            sent = self._sent.intersection(parent.children.values())
            child = parent.children.get(token)
            if child is None or child not in sent:
                return bool(sent)
            parent = child
        return False

    def _restart(self) -> None:
        """The tail is the end of the most confident line sent that still holds, and iter starts anew."""
        self._launched = 0
        sent = self._tree.best_path(lambda node: node.draft_probability, allows=self._sent.__contains__)
        self._tail = sent[-1] if sent else self._tree.root

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
        is_drafting = len(main) < options.draft_tokens and not (main[-1] if main else self._tail).children
        return None if is_drafting or not main else self._launch(lines)

    def _extended(self, line: list[TreeNode], *, accept: float, split: float) -> list[list[TreeNode]]:
        """A line with its next token and the branches next to it, or as it is where it ends."""
        children = (line[-1] if line else self._tail).children.values()
        ranked = sorted(children, key=lambda node: -node.draft_probability)
        if accept >= 1.0 or not ranked or ranked[0].draft_probability < accept:
            return [line]
        return [[*line, node] for rank, node in enumerate(ranked) if not rank or node.draft_probability > split]

    def _launch(self, lines: list[list[TreeNode]]) -> SendTree:
        nodes = dict.fromkeys(node for line in lines for node in line)
        block = block_below(self._tail, nodes, lambda node: (node.most_confident_author(), node.draft_probability))
        self._sent.update(nodes)
        self._tail = lines[0][-1]
        return SendTree(block)
