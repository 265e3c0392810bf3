"""Distributed speculative inference (DSI, arXiv 2405.14105) with one verifier, whose target never waits for drafts.

In the paper a thread of the target alone runs below every corrected prefix, so that DSI is never slower than plain
decoding. Here that thread is the verifier on free pacing: it commits token after token by itself, and a pass takes
along the drafter's chain as far as it has come.
"""

from dataclasses import dataclass

from cosine_lab.rivals.continuous import Continuous, credit
from cosine_lab.rivals.paths import best_path
from cosine_p2p.strategy.base import SendTree
from cosine_p2p.strategy.tree import block_below


@dataclass(frozen=True, slots=True, kw_only=True)
class DsiOptions:
    """`author` drafts, or for None the best. Every `lookahead_tokens` drafted tokens are sent on together.

    The paper's equation 1 bounds the lookahead from below by the number of verifiers, each of which takes one chain
    at a time. A verifier on free pacing takes all that is there into its next pass, so the least one is right here.
    """

    author: int | None = None
    lookahead_tokens: int = 1


class Dsi(Continuous):
    """Sends the drafter's chain, lookahead by lookahead; after a rejection what follows the corrected prefix."""

    def __init__(self, root: bytes, position: int = 0, options: DsiOptions | None = None) -> None:
        self._options = options or DsiOptions()
        super().__init__(root, position, author=self._options.author, width_nodes=1)

    def _unsent(self) -> list[SendTree]:
        chain = best_path(self._tree, lambda node: node.draft_probability)
        # A node is sent after all before it, so what is known of a chain is its beginning.
        known = sum(node in self._sent for node in chain)
        lookahead = self._options.lookahead_tokens
        new = chain[known : known + (len(chain) - known) // lookahead * lookahead]
        if not new:
            return []
        self._sent.update(new)
        return [SendTree(block_below(chain[known - 1] if known else self._tree.root, new, credit))]
