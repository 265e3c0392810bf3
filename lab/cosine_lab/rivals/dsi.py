"""Distributed speculative inference (DSI, arXiv 2405.14105) with one verifier, whose target never waits for drafts.

In the paper a thread of only the target runs below every corrected prefix, so that DSI is never slower than plain
decoding. Here that thread is the verifier on free pacing: it commits token after token by itself, and a pass
includes the part of the drafter's chain that has arrived.
"""

from dataclasses import dataclass

from cosine_lab.rivals.continuous import Continuous, credit
from cosine_lab.rivals.paths import best_path
from cosine_p2p.strategy.base import SendTree
from cosine_p2p.strategy.tree import block_below


@dataclass(frozen=True, slots=True, kw_only=True)
class DsiOptions:
    """`author` drafts, or the best one for None. Drafted tokens are sent in groups of `lookahead_tokens`.

    The paper's equation 1 bounds the lookahead from below by the number of verifiers, each with one chain at a
    time. A verifier under free pacing takes all drafts into its next pass, so the smallest lookahead is right here.
    """

    author: int | None = None
    lookahead_tokens: int = 1


class Dsi(Continuous):
    """Sends the drafter's chain, lookahead by lookahead."""

    def __init__(self, root: bytes, position: int = 0, options: DsiOptions | None = None) -> None:
        self._options = options or DsiOptions()
        super().__init__(root, position, author=self._options.author, width_nodes=1)

    def _unsent(self) -> list[SendTree]:
        chain = best_path(self._tree, lambda node: node.draft_probability)
        # Nodes are sent in order, so the verifier has a prefix of the chain.
        known = sum(node in self._sent for node in chain)
        lookahead = self._options.lookahead_tokens
        new = chain[known : known + (len(chain) - known) // lookahead * lookahead]
        if not new:
            return []
        self._sent.update(new)
        return [SendTree(block_below(chain[known - 1] if known else self._tree.root, new, credit))]
