"""Drafts from an index of texts: they follow the text that continues the longest match with the output. Pure.

From a long match on, a `Prediction` of what follows there stays with the output, also over small changes, until
another place matches more tokens. Short matches, or places that continue differently, are drafted as guesses.
"""

import math
from array import array
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from cosine_p2p.own_texts.index import MAX_MATCH, WORD, TextIndex
from cosine_p2p.strategy.prediction import SURE_TOKENS, Prediction
from cosine_protocol.nodes import BASE, Node

# Measured on new and changed files of this repository, drafted from an earlier state of it. Where all places that
# match n tokens continue alike, that token comes with 0.49 (n = 2), 0.6 (4), 0.8 (8), 0.93 (16) or 0.99 (32); where
# they differ, the most frequent one with 0.11 to 0.45.
FOLLOWED_TOKENS: Final = 8  # A match of as many tokens, which all places continue alike, is followed.
RETURNS: Final = (0.3,)  # Where a followed text was left, 0.28 to 0.41 of next tokens come at the likeliest place,
LEFT_TOKENS: Final = 8  # and 0.1 after this many.
PREDICTED_TOKENS: Final = 1024  # Length of the text that is followed: a hundred lines. Then it is looked up again.
LEAST_MATCH: Final = 2  # What is seen after one token alone is a guess at 0.12.
MAX_PLACES: Final = 16  # Places of one match that are compared.
GUESSED_TOKENS: Final = 8  # From a match of two tokens on 0.9 come.
MIN_PATH_PROBABILITY: Final = 0.1  # As of a verifier's own look-ups.
LEAST_RATE: Final = 0.1
MOST_RATE: Final = 0.99  # A followed text begins between these, so that it can be learned otherwise.
LIKE_GUESSES: Final = 64  # Guesses that say how much the texts are like what is asked for; half as much before.


@dataclass(slots=True)
class Likeness:
    """How well the texts fit what is written, over the requests of a client.

    Guesses came `came` times where the shares above expected `expected` times; followed texts go on at `rate`.
    """

    came: float = 2.0
    expected: float = 4.0
    rate: float = 0.9

    def learn(self, *, expected: float, came: bool) -> None:
        keep = 1.0 - 1.0 / LIKE_GUESSES
        self.expected = keep * self.expected + expected
        self.came = keep * self.came + came

    @property
    def factor(self) -> float:
        return min(1.0, self.came / self.expected)


def _likelihood(matching: int) -> float:
    """Return the share of next tokens that come after a match of so many tokens."""
    return matching / (matching + 3)


class OwnDrafts:
    """Drafts for one request, whose tokens so far are `tokens`; `index` may change, and is None at first."""

    def __init__(
        self, index: Callable[[], TextIndex | None], tokens: Sequence[int], likeness: Likeness | None = None
    ) -> None:
        self._index = index
        self._likeness = likeness or Likeness()
        self._text = bytearray()
        self._last: tuple[int, ...] = ()
        self._prediction = Prediction((), rate=self._likeness.rate)
        # The share of places that continue so, the length of the match, and what follows.
        self._guesses: list[tuple[float, int, tuple[int, ...]]] = []
        self._ahead: tuple[int, ...] = ()
        self._enough = 0
        self.follow(tuple(tokens))

    def follow(self, tokens: tuple[int, ...]) -> None:
        if self._guesses and tokens:
            expected = sum(share * _likelihood(matched) for share, matched, _ in self._guesses)
            self._likeness.learn(expected=expected, came=any(text[0] == tokens[0] for _, _, text in self._guesses))
        self._text += array("i", tokens).tobytes()
        self._last = (*self._last, *tokens)[-MAX_MATCH:]
        self._ahead = self._ahead[len(tokens) :] if self._ahead[: len(tokens)] == tokens else ()
        self._prediction.follow(tokens)
        self._likeness.rate = min(max(LEAST_RATE, self._prediction.rate), MOST_RATE)
        self._guesses = []
        if self._prediction.strayed > LEFT_TOKENS:
            self._prediction = Prediction((), rate=self._likeness.rate)
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
            self._prediction = Prediction(text, run=matched, rate=self._likeness.rate, returns=RETURNS)
        elif self._text.find(self._text[-WORD * matched :], 0, -WORD) < 0:
            # Otherwise the verifier copies from the request what followed there.
            self._guesses = [
                (count / len(following), matched, following[firsts[token]]) for token, count in counts.most_common()
            ]

    def draft(self, *, is_anew: bool = False) -> list[Node]:
        """Return drafts, parents first; none while the verifier has enough, unless `is_anew`: it has none."""
        if len(self._ahead) > self._enough and not is_anew:
            return []
        nodes, self._ahead = self._prediction.draft(), ()
        if self._prediction.run >= SURE_TOKENS:
            # A verifier looks at all that it was sent before each pass, which costs it 1 % with 48 tokens.
            nodes = nodes[: math.ceil(math.log(MIN_PATH_PROBABILITY) / math.log(self._prediction.rate))]
            self._ahead, self._enough = tuple(node.token for node in nodes), len(nodes) // 2
        begun = {node.token for node in nodes if node.parent == BASE}
        for share, matched, text in self._guesses:
            path, parent = 1.0, BASE
            for matching, token in enumerate(text if text[0] not in begun else (), matched):
                likelihood = _likelihood(matching) * (share * self._likeness.factor if parent == BASE else 1.0)
                path *= likelihood
                if path < MIN_PATH_PROBABILITY:
                    break
                nodes.append(Node(parent, token, likelihood))
                parent = len(nodes) - 1
        return nodes
