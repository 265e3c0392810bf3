"""Drafts from an index of texts: the continuation of the longest match with the output. Pure.

After a long match, a `Prediction` of the text that follows it tracks the output, also across small changes, until
another place matches more tokens. Short matches, and places with different continuations, are drafted as guesses.
"""

import math
from array import array
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Final

from cosine_p2p.own_texts.index import MAX_MATCH, WORD, TextIndex
from cosine_p2p.strategy.prediction import SURE_TOKENS, Prediction
from cosine_protocol.draft import BASE, Node

# Measured on new and changed files of this repository, drafted from an earlier state of it. If all places that
# match n tokens have the same next token, its probability is 0.49 (n = 2), 0.6 (4), 0.8 (8), 0.93 (16) or
# 0.99 (32); if they differ, that of the most frequent one is 0.11 to 0.45.
FOLLOWED_TOKENS: Final = 8  # Minimum length of a match, with the same next token everywhere, that is followed.
# After a deviation from a followed text 0.28 to 0.41 of next tokens are at the likeliest place, after eight 0.1.
RETURNS: Final = (0.3,)
LEFT_TOKENS: Final = 8
PREDICTED_TOKENS: Final = 1024  # Length of the text that is followed, a hundred lines, until the next look-up.
LEAST_MATCH: Final = 2  # After a single token the probability is 0.12.
MAX_PLACES: Final = 16  # Maximum number of places of one match that are compared.
GUESSED_TOKENS: Final = 8  # Maximum length of a guess; after a match of two tokens 0.9 tokens of it are accepted.
MIN_PATH_PROBABILITY: Final = 0.1  # The same as for a verifier's own look-ups.


def _likelihood(matching: int) -> float:
    """Return the share of next tokens that come after a match of this length."""
    return matching / (matching + 3)


class OwnDrafts:
    """Drafts for one request with these `tokens` so far. The result of `index` may change; None: not ready."""

    def __init__(self, index: Callable[[], TextIndex | None], tokens: Sequence[int]) -> None:
        self._index = index
        self._text = bytearray()
        self._last: tuple[int, ...] = ()
        self._prediction = Prediction(())
        # The share of places with this continuation, the length of the match, and the continuation.
        self._guesses: list[tuple[float, int, tuple[int, ...]]] = []
        self.follow(tuple(tokens))

    def follow(self, tokens: tuple[int, ...]) -> None:
        self._text += array("i", tokens).tobytes()
        self._last = (*self._last, *tokens)[-MAX_MATCH:]
        self._prediction.follow(tokens)
        self._guesses = []
        if self._prediction.strayed > LEFT_TOKENS:
            self._prediction = Prediction(())
        index = self._index()
        if index is None or self._prediction.run >= MAX_MATCH:
            return
        matched, places = index.longest(self._last, most=MAX_PLACES)
        if matched <= max(self._prediction.run, LEAST_MATCH - 1):
            return
        following = {place: text for place in places if (text := index.after(place, GUESSED_TOKENS))}
        counts = Counter(text[0] for text in following.values())
        firsts = {text[0]: place for place, text in following.items()}
        if matched >= FOLLOWED_TOKENS and len(counts) == 1:
            (place,) = firsts.values()
            text = index.after(place, PREDICTED_TOKENS)
            self._prediction = Prediction(text, run=matched, returns=RETURNS)
        elif self._text.find(self._text[-WORD * matched :], 0, -WORD) < 0:
            # Otherwise the verifier drafts the continuation from the request's own text.
            self._guesses = [
                (count / len(following), matched, following[firsts[token]]) for token, count in counts.most_common()
            ]

    def draft(self) -> list[Node]:
        """Return drafts, parents first."""
        nodes = self._prediction.draft()
        if self._prediction.run >= SURE_TOKENS:
            # Each draft node costs the verifier time before each pass: 1 % with 48 tokens.
            nodes = nodes[: math.ceil(math.log(MIN_PATH_PROBABILITY) / math.log(self._prediction.rate))]
        begun = {node.token for node in nodes if node.parent == BASE}
        for share, matched, text in self._guesses:
            path, parent = 1.0, BASE
            for matching, token in enumerate(text if text[0] not in begun else (), matched):
                likelihood = _likelihood(matching) * (share if parent == BASE else 1.0)
                path *= likelihood
                if path < MIN_PATH_PROBABILITY:
                    break
                nodes.append(Node(parent, token, likelihood))
                parent = len(nodes) - 1
        return nodes
