"""Continuous asynchronous speculation (PipeInfer, arXiv 2407.11798) for a verifier of one stage.

The verifier runs a single-token pass as soon as the last has ended and includes every micro-batch that has arrived;
the drafter continues from the tail of its last speculation while its confidence holds. The paper also abandons
passes over invalidated micro-batches midway, which frees later stages of a pipeline; here every pass also carries
the single-token run, which is always wanted, so abandoning one could only lose time.
"""

from dataclasses import dataclass

from cosine_lab.rivals.continuous import Continuous, credit
from cosine_lab.rivals.paths import best_path
from cosine_p2p.strategy.base import SendTree
from cosine_p2p.strategy.tree import TreeNode, block_below


@dataclass(frozen=True, slots=True, kw_only=True)
class PipeInferOptions:
    """Options of `PipeInfer`, of which ranges are published.

    author: drafter to use. Default: the best.
    draft_tokens: depth of a micro-batch.
    p_accept: minimum draft probability with which a draft continues.
    p_split, n_parallel: draft probability above which another child becomes a branch, and maximum number of
        branches.

    The terms that the authors' program can add for micro-batches in flight and for rejections are 0.
    """

    author: int | None = None
    draft_tokens: int = 1
    p_accept: float = 0.1
    p_split: float = 0.8
    n_parallel: int = 3


class PipeInfer(Continuous):
    """Sends micro-batches while drafts are confident; restarts behind a rejected token."""

    def __init__(self, root: bytes, position: int = 0, options: PipeInferOptions | None = None) -> None:
        self._options = options or PipeInferOptions()
        super().__init__(root, position, author=self._options.author, width_nodes=self._options.n_parallel)
        self._tail = self._tree.root

    def _restart(self) -> None:
        """Set the tail to the end of the most confident path sent that is still possible."""
        sent = best_path(self._tree, lambda node: node.draft_probability, allows=self._sent.__contains__)
        self._tail = sent[-1] if sent else self._tree.root

    def _unsent(self) -> list[SendTree]:
        """Return the micro-batches that are complete and confident."""
        batches: list[SendTree] = []
        while lines := self._next_lines():
            nodes = dict.fromkeys(node for line in lines for node in line)
            batches.append(SendTree(block_below(self._tail, nodes, credit)))
            self._sent.update(nodes)
            self._tail = lines[0][-1]
        return batches

    def _next_lines(self) -> list[list[TreeNode]]:
        """Return the paths of the next micro-batch; none while it is incomplete or unlikely."""
        options = self._options
        lines: list[list[TreeNode]] = [[]]
        for _ in range(options.draft_tokens):
            grown = [longer for line in lines for longer in self._extended(line)][: options.n_parallel]
            if len(grown[0]) == len(lines[0]):
                break
            lines = grown
        main = lines[0]
        is_drafting = len(main) < options.draft_tokens and not (main[-1] if main else self._tail).children
        return [] if is_drafting or not main else lines

    def _extended(self, line: list[TreeNode]) -> list[list[TreeNode]]:
        """Return a path extended by its next token and by branches, or unchanged where it ends."""
        children = (line[-1] if line else self._tail).children.values()
        ranked = sorted(children, key=lambda node: -node.draft_probability)
        if not ranked or ranked[0].draft_probability < self._options.p_accept:
            return [line]
        split = self._options.p_split
        return [[*line, node] for rank, node in enumerate(ranked) if not rank or node.draft_probability > split]
