"""Prefixes that a client has fused from several drafters' tokens, and drafters that go on below them.

An assignment of the product names its base by digest alone, and a drafter need not have drafted it. What a rival
tells its drafters besides does not travel: all of them are in one process. It would be four bytes a token.
"""

from collections import OrderedDict
from typing import Final

from cosine_node.drafter.draft_tree import MIN_PROBABILITY, Branch, DraftTree
from cosine_p2p.strategy.tree import Block, TreeNode
from cosine_protocol.digests import roll_digest

MAX_TOLD: Final = 4096
"""Bounds memory: prefixes that drafters may still ask for."""


class ToldPrefixes:
    """The tokens of fused prefixes by their digests, and the committed prefix that each begins with."""

    def __init__(self) -> None:
        self._told: OrderedDict[bytes, tuple[bytes, tuple[int, ...]]] = OrderedDict()

    def note(self, committed: bytes, tokens: tuple[int, ...]) -> bytes:
        """Tell drafters of a prefix; returns its digest."""
        digest = roll_digest(committed, tokens)
        self._told[digest] = committed, tokens
        if len(self._told) > MAX_TOLD:
            self._told.popitem(last=False)
        return digest

    def find(self, digest: bytes) -> tuple[bytes, tuple[int, ...]]:
        """The committed prefix and the tokens after it; for one that nobody told of, itself and none."""
        return self._told.get(digest, (digest, ()))


TOLD: Final = ToldPrefixes()


class FusedTree(DraftTree):
    """A drafter's tree in which the fused prefix that a client assigns is a branch of its own."""

    def assign(self, branch: Branch) -> Block | None:
        """Draft there from now on, where the committed prefix is known."""
        committed, tokens = TOLD.find(branch.base)
        node = self._tree.get(committed)
        for token in tokens if node is not None else ():
            # It counts as certain, however unlikely it is to this model, so that it is drafted below first.
            assert node is not None
            parent, node = node, node.children.get(token)
            log_path_probability = self._states[parent].log_path_probability
            if node is not None:
                self._raise(node, log_path_probability - self._states[node].log_path_probability)
            elif (node := self._grow(parent, token, log_path_probability, MIN_PROBABILITY)) is None:
                break
        return super().assign(branch)

    def _raise(self, top: TreeNode, log_factor: float) -> None:
        pending = [top]
        while pending:
            node = pending.pop()
            self._states[node].log_path_probability += log_factor
            pending.extend(node.children.values())
