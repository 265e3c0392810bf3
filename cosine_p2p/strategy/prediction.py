"""Drafts from a text that a user predicts, which follow the output's place in it. Pure.

Usually the prediction is a text that shall be edited. The output follows it token by token, leaves it at a change,
and returns: after a replaced token, after new ones, or after some that are left out. A `Prediction` has a few
*places* where the output may continue, the likeliest first; each is drafted, and the next token decides.
"""

from bisect import bisect_left
from collections.abc import Sequence
from typing import Final

from cosine_protocol.draft import BASE, MAX_TREE_DEPTH, Node

# These drafts need no model, and the verifier selects those that pay: with a certain place much is drafted, else a
# few tokens at several places. 200 tokens of which a tenth is changed take 23 to 33 passes
# (tests/swarm/test_exactness.py).
MAX_CHAIN: Final = 3 * MAX_TREE_DEPTH // 4  # If all of it pays, 200 certain tokens take five passes.
SURE_TOKENS: Final = 2  # Number of consecutive predicted tokens that make a place certain; one may be a comma.
MAX_STRAY_CHAIN: Final = 2 * SURE_TOKENS  # The tokens that make a place certain, and as many more.
MAX_STRAYED: Final = 64  # Maximum distance from the last certain place for a return by one token.
NEAR_PLACES: Final = 32  # Bounds the time for a frequent token: number of its places searched, each way.
STRAY_PROBABILITIES: Final = (0.5, 0.25, 0.15)
"""Probabilities of the places where the output may return, the likeliest first; in one of ten cases it is none."""
PRIOR_HITS: Final = 9.0
PRIOR_TOKENS: Final = 10.0  # Prior: one predicted token in ten is wrong.


class Prediction:
    """A predicted text, compared with the output so far.

    Before its first token there were `run` predicted ones; `returns` has the probabilities of the places where the
    output may return.
    """

    def __init__(
        self,
        tokens: Sequence[int],
        *,
        run: int = SURE_TOKENS,
        returns: Sequence[float] = STRAY_PROBABILITIES,
    ) -> None:
        self.tokens = tuple(tokens)
        self._places_of: dict[int, list[int]] = {}
        for place, token in enumerate(self.tokens):
            self._places_of.setdefault(token, []).append(place)
        # The place after the last certain token, the output tokens since, and the latest run of predicted ones.
        self._anchor = 0
        self.strayed = 0
        self._run = run
        self._return_probabilities = returns
        self._places: list[int] = [0]
        self._last = -1
        self._hits, self._judged = PRIOR_HITS, PRIOR_TOKENS
        self._accepted: set[int] = set()

    @property
    def accepted(self) -> int:
        """Number of predicted tokens that the output has reached."""
        return len(self._accepted)

    @property
    def run(self) -> int:
        """Number of predicted tokens that came last, one after the other; 0 at the end of the text."""
        return self._run if self._places[0] < len(self.tokens) else 0

    @property
    def rate(self) -> float:
        """The share of tokens that came where the place was certain."""
        return self._hits / self._judged

    def follow(self, tokens: Sequence[int]) -> None:
        for token in tokens:
            held = [place for place in self._places if place < len(self.tokens) and self.tokens[place] == token]
            if self._run >= SURE_TOKENS and self._places[0] < len(self.tokens):
                self._judged += 1.0
                self._hits += bool(held)
            self.strayed += 1
            if held:
                self._accepted.add(held[0])
                self._run += 1
                self._places = [place + 1 for place in held]
                if self._run >= SURE_TOKENS:
                    self._places = self._places[:1]
                    self._anchor, self.strayed = self._places[0], 0
            else:
                self._run = 0
                self._places = self._returns(token)
            self._last = token

    def _returns(self, token: int) -> list[int]:
        """Return the places where the output may return after an unpredicted token, the likeliest first."""
        places = self._places_of.get(token, [])
        first = bisect_left(places, self._anchor)
        # After the same two tokens: first the nearest one ahead.
        near = places[first : first + NEAR_PLACES] + places[max(0, first - NEAR_PLACES) : first][::-1]
        found = [place + 1 for place in near if place and self.tokens[place - 1] == self._last][:1]
        # After the token itself, if some were left out.
        found += [place + 1 for place in places[first : first + 1] if place < self._anchor + MAX_STRAYED]
        # The tokens replaced the same number of others; or all of them are new.
        if self.strayed < MAX_STRAYED:
            found.append(self._anchor + self.strayed)
        found.append(self._anchor)
        return list(dict.fromkeys(found))[: len(self._return_probabilities)]

    def draft(self) -> list[Node]:
        """Return drafts that follow the output, parents before children."""
        rate = self.rate
        if self._run >= SURE_TOKENS:
            return self._chain(self._places[0], MAX_CHAIN, rate, rate)
        nodes: list[Node] = []
        begun: set[int] = set()
        for place, probability in zip(self._places, self._return_probabilities, strict=False):
            if place < len(self.tokens) and self.tokens[place] not in begun:
                begun.add(self.tokens[place])
                nodes += self._chain(place, MAX_STRAY_CHAIN, probability, rate, first=len(nodes))
        return nodes

    def _chain(self, place: int, length: int, begin: float, rate: float, *, first: int = 0) -> list[Node]:
        return [
            Node(first + index - 1 if index else BASE, token, rate if index else begin)
            for index, token in enumerate(self.tokens[place : place + length])
        ]
