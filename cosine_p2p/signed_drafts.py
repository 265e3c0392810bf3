"""Signed fragments of one request, by the prefixes that their nodes complete: they show whose a token was. Pure."""

from collections import OrderedDict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final

from cosine_protocol import messages as m
from cosine_protocol.digests import extend_digest
from cosine_protocol.limits import MAX_AUTHORS, MAX_WINDOW_NODES
from cosine_protocol.nodes import BASE

MAX_KEPT_NODES: Final = 2 * MAX_WINDOW_NODES
"""Bounds memory, for each author: twice what a drafter may have under way."""


@dataclass(slots=True, eq=False)
class SignedDraft:
    """One fragment of an author. `is_checked`: its signature holds; `is_told`: the client has it."""

    author: int
    fragment: m.Fragment
    draft: m.Draft
    is_checked: bool = False
    is_told: bool = False


@dataclass(frozen=True, slots=True)
class Claim:
    """The token `index` of a commit, which completes the prefix `digest`, is said to be an author's."""

    index: int
    author: int
    digest: bytes


def claims_of(commit: m.Commit | m.Verified, before: bytes) -> Iterator[Claim]:
    """What a commit after the prefix `before` says of drafters."""
    digest = before
    for index, (token, author) in enumerate(zip(commit.tokens, commit.authors, strict=True)):
        digest = extend_digest(digest, token)
        if 0 < author <= MAX_AUTHORS:
            yield Claim(index, author, digest)


def without(authors: bytes, claims: Iterable[Claim]) -> bytes:
    """Author bytes in which the tokens of these claims are the verifier's own."""
    left = bytearray(authors)
    for claim in claims:
        left[claim.index] = 0
    return bytes(left)


@dataclass(slots=True)
class SignedDrafts:
    """The fragments that may still show something; the oldest nodes of an author go first."""

    _nodes: dict[int, OrderedDict[bytes, tuple[int, SignedDraft]]] = field(default_factory=dict)

    def add(self, signed: SignedDraft) -> None:
        """Take in a fragment; of nodes that the author has sent before, this one counts from now on."""
        draft, own = signed.draft, self._nodes.setdefault(signed.author, OrderedDict())
        digests: list[bytes] = []
        positions: list[int] = []
        for node in draft.nodes:
            parent, position = draft.base, draft.position
            if node.parent != BASE:
                parent, position = digests[node.parent], positions[node.parent] + 1
            digests.append(extend_digest(parent, node.token))
            positions.append(position)
            known = own.pop(digests[-1], None)
            # One that holds, or is told already, is not given up for another.
            keeps = known is not None and (known[1].is_checked or known[1].is_told)
            own[digests[-1]] = known if keeps and known is not None else (position, signed)
        while len(own) > MAX_KEPT_NODES:
            own.popitem(last=False)

    def find(self, claim: Claim) -> SignedDraft | None:
        """The fragment in which the claim's token is a node of its author."""
        own = self._nodes.get(claim.author)
        found = None if own is None else own.get(claim.digest)
        return None if found is None else found[1]

    def forget_before(self, position: int) -> None:
        """Forget nodes for output positions before this one, which are committed."""
        for author, own in self._nodes.items():
            self._nodes[author] = OrderedDict((digest, kept) for digest, kept in own.items() if kept[0] >= position)
