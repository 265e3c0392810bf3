"""The drafts of one request that may still be accepted: authors, confidences, and signatures. Pure."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from cosine_p2p.storage.memory import Remembered
from cosine_protocol.digests import extend_digest
from cosine_protocol.draft import BASE, MAX_WINDOW_NODES, Draft, Fragment
from cosine_protocol.stream import MAX_AUTHORS

MAX_KEPT_NODES: Final = 2 * MAX_WINDOW_NODES  # Bounds memory per author: twice the nodes in flight.


@dataclass(slots=True, eq=False)
class SignedDraft:
    """A fragment of an author. `is_checked`: its signature is valid. `is_told`: the client has it."""

    author: int
    fragment: Fragment
    draft: Draft
    is_checked: bool = False
    is_told: bool = False


@dataclass(frozen=True, slots=True)
class Claim:
    """A statement that the token `index` of a commit, which completes the prefix `digest`, is an author's."""

    index: int
    author: int
    digest: bytes


def claims_of(tokens: Sequence[int], authors: bytes, before: bytes) -> Iterator[Claim]:
    """Yield a commit's claims about drafters; its tokens follow the prefix `before`."""
    digest = before
    for index, (token, author) in enumerate(zip(tokens, authors, strict=True)):
        digest = extend_digest(digest, token)
        if 0 < author <= MAX_AUTHORS:
            yield Claim(index, author, digest)


def without(authors: bytes, claims: Iterable[Claim]) -> bytes:
    """Return author bytes in which the tokens of these claims are the verifier's own."""
    left = bytearray(authors)
    for claim in claims:
        left[claim.index] = 0
    return bytes(left)


class _Node(NamedTuple):
    position: int
    confidence: float
    signed: SignedDraft


@dataclass(slots=True)
class Drafts:
    """Nodes by author and by the digest of the prefix that they complete; an author's oldest are dropped first."""

    _nodes: dict[int, Remembered[bytes, _Node]] = field(default_factory=dict)

    def add(self, signed: SignedDraft) -> None:
        """Add a fragment; it replaces the confidence of nodes that were sent before."""
        draft, own = signed.draft, self._nodes.setdefault(signed.author, Remembered(MAX_KEPT_NODES))
        digests: list[bytes] = []
        positions: list[int] = []
        for node in draft.nodes:
            parent, position = draft.base, draft.position
            if node.parent != BASE:
                parent, position = digests[node.parent], positions[node.parent] + 1
            digests.append(extend_digest(parent, node.token))
            positions.append(position)
            known = own.get(digests[-1])
            # A fragment that is checked, or that the client has, is not replaced.
            keeps = known is not None and (known.signed.is_checked or known.signed.is_told)
            shown = known.signed if keeps and known is not None else signed
            own.note(digests[-1], _Node(position, node.confidence, shown))

    def find(self, claim: Claim) -> SignedDraft | None:
        node = self._node(claim)
        return None if node is None else node.signed

    def confidences(self, tokens: Sequence[int], authors: bytes, before: bytes) -> tuple[float | None, ...]:
        """Return the author's confidence of each committed token, None if unknown."""
        found: list[float | None] = [None] * len(tokens)
        for claim in claims_of(tokens, authors, before):
            node = self._node(claim)
            found[claim.index] = None if node is None else node.confidence
        return tuple(found)

    def forget_before(self, position: int) -> None:
        for own in self._nodes.values():
            for digest, node in own.items():
                if node.position < position:
                    own.pop(digest)

    def _node(self, claim: Claim) -> _Node | None:
        own = self._nodes.get(claim.author)
        return None if own is None else own.get(claim.digest)
