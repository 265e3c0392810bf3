"""A verifier's drafts without a model: copies of the text, forced tokens, and a prediction. Pure.

They cost no pass of a drafter, so no drafter is credited for them.
"""

import heapq
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Final, NamedTuple

from cosine_engine.constraints.grammars import FORCED_PROBABILITY, MAX_FORCED, GrammarPlace, Guide
from cosine_engine.ngram import FollowerIndex
from cosine_p2p.strategy.prediction import Prediction
from cosine_protocol.draft import BASE, Node
from cosine_protocol.verify import FORCED_AUTHOR

TARGET_AUTHOR: Final = 0
"""The author of the target's tokens, and of tokens that the verifier copies from the text or a prediction."""
MAX_NODES: Final = 12
MIN_PATH_PROBABILITY: Final = 0.1
"""Limits of a prompt lookup; it takes about 0.2 ms of Python a pass (docs/decisions/0012)."""
WRITTEN_PROBABILITY: Final = 0.9
"""Probability that the text writes required bytes in a way it used before."""
MAX_WRITTEN: Final = 4
"""Ways to write required bytes that are considered, each at the cost of a grammar lookup. Four equally frequent
ways are above `MIN_PATH_PROBABILITY`, ten are not."""


class FreeNodes(NamedTuple):
    """Drafted nodes, parents first, and the author of each."""

    nodes: list[Node]
    authors: list[int]


class FreeDrafts:
    """The drafts of one request.

    `text` are tokens to copy from, `guide` the tokens that its constraint forces, and `prediction` is the output
    that its client expects.
    """

    def __init__(
        self, text: Iterable[int], *, guide: Guide | None = None, prediction: Prediction | None = None
    ) -> None:
        self._lookup = PromptLookup(text)
        self._guide = guide
        self._prediction = prediction

    def after(self, tokens: Sequence[int], output: Sequence[int]) -> Iterator[FreeNodes]:
        """Follow newly committed tokens, the end of `output`, and draft what may come next."""
        self._lookup.extend(tokens)
        yield self._lookup.draft(None if self._guide is None else self._guide.place(output))
        if self._prediction is not None:
            self._prediction.follow(tokens)
            nodes = list(self._prediction.draft())
            yield FreeNodes(nodes, [TARGET_AUTHOR] * len(nodes))


class _Run(NamedTuple):
    """Consecutive tokens to draft, with the probability of each; `place` is the grammar place before them."""

    tokens: tuple[int, ...]
    probability: float
    author: int
    place: GrammarPlace | None


class PromptLookup:
    """Prompt lookup decoding for one request: an n-gram index of its text proposes likely continuations."""

    def __init__(self, tokens: Iterable[int]) -> None:
        self._index = FollowerIndex()
        self._index.extend(tokens)
        self._place: GrammarPlace | None = None
        self._written: dict[bytes, Counter[int]] = {}

    def extend(self, tokens: Sequence[int]) -> None:
        """Append committed tokens, and learn which of them wrote bytes that the grammar required."""
        self._index.extend(tokens)
        place, self._place = self._place, None
        for token in tokens:
            if place is None:
                break
            if begun := _begun(place):
                self._written.setdefault(begun, Counter())[token] += 1
            place = place.after((token,))

    def draft(self, place: GrammarPlace | None = None) -> FreeNodes:
        """Return the most probable continuations, parents first, with at most `MAX_NODES` copied tokens.

        `place` is the text's place in its grammar: tokens it excludes are not copied, and tokens it forces are
        added, at most `MAX_FORCED`.
        """
        self._place = place
        own = FreeNodes([], [])
        paths: list[tuple[int, ...]] = []
        heap: list[tuple[float, int, int, int, _Run]] = []
        left = {TARGET_AUTHOR: MAX_NODES, FORCED_AUTHOR: MAX_FORCED}

        def push(path_probability: float, path: tuple[int, ...], parent: int, run: _Run) -> None:
            heapq.heappush(heap, (-path_probability, len(path), parent, run.tokens[0], run))

        def push_children(
            parent: int, path: tuple[int, ...], path_probability: float, place: GrammarPlace | None
        ) -> None:
            if place is not None and (forced := place.forced()[: left[FORCED_AUTHOR]]):
                push(path_probability, path, parent, _Run(forced, FORCED_PROBABILITY, FORCED_AUTHOR, place))
                return
            for token, probability in self._followers(path, place):
                if path_probability * probability < MIN_PATH_PROBABILITY:
                    break
                run = _Run((token,), probability, TARGET_AUTHOR, place)
                push(path_probability * probability, path, parent, run)

        push_children(BASE, (), 1.0, place)
        while heap:
            negated, _, parent, _, run = heapq.heappop(heap)
            if left[run.author] < len(run.tokens):
                continue
            left[run.author] -= len(run.tokens)
            path = () if parent == BASE else paths[parent]
            for token in run.tokens:
                own.nodes.append(Node(parent, token, run.probability))
                own.authors.append(run.author)
                path, parent = (*path, token), len(paths)
                paths.append(path)
            after = None if run.place is None else run.place.after(run.tokens)
            if run.place is None or after is not None:
                push_children(parent, path, -negated, after)
        return own

    def _followers(self, path: tuple[int, ...], place: GrammarPlace | None) -> Sequence[tuple[int, float]]:
        """The tokens that may follow a path, with their probabilities."""
        length = len(self._index.tokens)
        self._index.extend(path)
        found = self._index.estimate().found
        self._index.cut(length)
        if place is None:
            return found
        if written := self._written.get(_begun(place)):
            # The text's habit: the quote after a name and the colon are one token or two.
            share = WRITTEN_PROBABILITY / written.total()
            found = tuple((token, share * count) for token, count in written.most_common(MAX_WRITTEN))
        allowed = [one for one in found if place.after(one[:1])]
        # Renormalise without the excluded tokens.
        left = 1.0 - sum(probability for _, probability in found) + sum(probability for _, probability in allowed)
        return [(token, probability / left) for token, probability in allowed]


def _begun(place: GrammarPlace) -> bytes:
    """The bytes that must come next, if no token is forced."""
    return b"" if place.forced() else place.begun()
