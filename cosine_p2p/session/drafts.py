"""One index of the drafts of a request: who drafted a node, with what confidence, signed where. Pure.

A block is hashed once, when it is added. When a commit reaches a node, it is found by its author and by the digest
of the prefix that it completes.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from cosine_p2p.storage.memory import Remembered
from cosine_p2p.strategy.tree import digests_of
from cosine_protocol.digests import extend_digest
from cosine_protocol.draft import BASE, MAX_WINDOW_NODES, Draft, Fragment
from cosine_protocol.fields import MAX_NEW_TOKENS
from cosine_protocol.stream import MAX_AUTHORS

MAX_KEPT_NODES: Final = 2 * MAX_WINDOW_NODES  # Bounds memory per author: twice the nodes in flight.


@dataclass(slots=True, eq=False)
class SignedDraft:
    """A fragment. `is_checked`: its signature is valid. `is_reported`: the client of a delegate has it."""

    fragment: Fragment
    is_checked: bool = False
    is_reported: bool = False


class SignedNode(NamedTuple):
    """A node of a fragment."""

    confidence: float
    signed: SignedDraft


class Drafts:
    """The drafts below and beyond a committed prefix of this `digest` and `position`."""

    def __init__(self, digest: bytes, position: int = 0) -> None:
        self._digest = digest
        self._position = position
        self._nodes: dict[int, Remembered[bytes, SignedNode]] = {}
        self._drafted_positions: set[int] = set()
        self.offered = 0
        """Number of committed tokens for whose position there was a draft."""

    def add(self, author: int, signed: SignedDraft, draft: Draft) -> tuple[bytes, ...]:
        """Add a fragment, and return the digests of its nodes.

        It replaces the confidence of nodes that the author has sent before, but no signature that is checked or
        that the client has. An author's oldest nodes are dropped first.
        """
        own = self._nodes.setdefault(author, Remembered(MAX_KEPT_NODES))
        digests = digests_of(draft.base, draft.nodes)
        positions: list[int] = []
        for node, digest in zip(draft.nodes, digests, strict=True):
            positions.append(draft.position if node.parent == BASE else positions[node.parent] + 1)
            known = own.get(digest)
            keeps = known is not None and (known.signed.is_checked or known.signed.is_reported)
            own.note(digest, SignedNode(node.confidence, known.signed if known and keeps else signed))
        self._drafted_positions.update(at for at in positions if self._position <= at < MAX_NEW_TOKENS)
        return digests

    def commit(self, position: int, tokens: Sequence[int], authors: bytes) -> list[SignedNode | None]:
        """Advance to these tokens, and return the node of each one's author; None if the author has sent none.

        Tokens that were committed before have no node.
        """
        found: list[SignedNode | None] = []
        known = self._position - position
        for token, author in zip(tokens[known:], authors[known:], strict=True):
            self._digest = extend_digest(self._digest, token)
            own = self._nodes.get(author)
            found.append(None if own is None else own.get(self._digest))
            self.offered += self._position in self._drafted_positions
            self._drafted_positions.discard(self._position)
            self._position += 1
        return [*(None for _ in tokens[:known]), *found]

    def note_told_offered(self, tokens: int) -> None:
        """Note a delegate's report of `offered`."""
        self.offered = max(self.offered, min(tokens, self._position))


def is_drafter(author: int) -> bool:
    """Return whether an author byte names a drafter of the request."""
    return 0 < author <= MAX_AUTHORS
