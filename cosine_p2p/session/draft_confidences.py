"""How likely drafters called the tokens of theirs that were committed, by the drafts they signed. Pure."""

from collections import defaultdict, deque
from collections.abc import Sequence
from typing import Final

from cosine_protocol.digests import extend_digest
from cosine_protocol.limits import MAX_TREE_DEPTH
from cosine_protocol.messages import Draft
from cosine_protocol.nodes import BASE, NodeBlock

MAX_DRAFTS: Final = 128
"""Bounds memory, for each drafter: more than it sends before what it drafted is committed or is not."""


class DraftConfidences:
    """The latest drafts of a request's drafters, and the prefixes on which they can stand.

    `d_0` is the digest of the request. Drafts that are forgotten, or that only a verifier has seen, tell nothing.
    """

    def __init__(self, d_0: bytes) -> None:
        self._drafts: defaultdict[int, deque[Draft]] = defaultdict(lambda: deque(maxlen=MAX_DRAFTS))
        self._digests: deque[bytes] = deque([d_0], maxlen=MAX_TREE_DEPTH + 1)
        self._output: deque[int] = deque(maxlen=MAX_TREE_DEPTH + 1)
        self._position = 0

    def note(self, author: int, draft: Draft) -> None:
        """A drafter has sent this."""
        self._drafts[author].appendleft(draft)

    def follow(self, tokens: Sequence[int], authors: bytes) -> tuple[float | None, ...]:
        """Tokens were committed; of each how likely its author called it, None of one that is not known to say."""
        return tuple(self._next(token, author) for token, author in zip(tokens, authors, strict=True))

    def _next(self, token: int, author: int) -> float | None:
        self._output.append(token)
        told = map(self._in_draft, self._drafts.get(author, ()))
        found = next((confidence for confidence in told if confidence is not None), None)
        self._digests.append(extend_digest(self._digests[-1], token))
        self._position += 1
        return found

    def _in_draft(self, draft: Draft) -> float | None:
        """The confidence of the latest token in a draft that leads to it."""
        behind = self._position - draft.position
        if not 0 <= behind < len(self._digests) or self._digests[-1 - behind] != draft.base:
            return None
        return confidence_of([*self._output][-1 - behind :], draft.nodes)


def confidence_of(path: Sequence[int], nodes: NodeBlock) -> float | None:
    """How likely a block calls the last token of a path that begins at its base, None if it does not lead there."""
    depths: dict[int, int] = {}
    for index, node in enumerate(nodes):
        depth = 0 if node.parent == BASE else depths.get(node.parent, len(path)) + 1
        if depth < len(path) and node.token == path[depth]:
            if depth == len(path) - 1:
                return node.confidence
            depths[index] = depth
    return None
