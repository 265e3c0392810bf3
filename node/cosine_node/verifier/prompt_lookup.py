"""The verifier's own drafts, without any network: what followed the same words before (prompt lookup decoding).

The n-gram index is that of the drafter without weights (`cosine_node.engine.ngram`).
"""

import heapq
from collections.abc import Iterable
from typing import Final

from cosine_node.engine.ngram import FollowerIndex
from cosine_protocol.nodes import BASE, Node

MAX_NODES: Final = 12
"""A choice that bounds the time of drafting: about 0.2 ms of Python a pass (docs/decisions/0012)."""
MIN_PATH_PROBABILITY: Final = 0.1
"""A choice: less likely paths are not worth the time that it takes to find them."""


class PromptLookup:
    """The text of one request, prompt and output, and the likeliest ways to continue it."""

    def __init__(self, tokens: Iterable[int]) -> None:
        self._index = FollowerIndex()
        self._index.extend(tokens)

    def extend(self, tokens: Iterable[int]) -> None:
        """Append committed tokens."""
        self._index.extend(tokens)

    def draft(self) -> list[Node]:
        """At most `MAX_NODES` nodes below the end of the text, the most probable paths, parents first."""
        length = len(self._index.tokens)
        nodes: list[Node] = []
        paths: list[tuple[int, ...]] = []
        heap: list[tuple[float, int, int, int, float]] = []

        def push_children(parent: int, path: tuple[int, ...], path_probability: float) -> None:
            self._index.extend(path)
            for token, probability in self._index.estimate().found:
                if path_probability * probability < MIN_PATH_PROBABILITY:
                    break
                heapq.heappush(heap, (-path_probability * probability, len(path), parent, token, probability))
            self._index.cut(length)

        push_children(BASE, (), 1.0)
        while heap and len(nodes) < MAX_NODES:
            negated, _, parent, token, probability = heapq.heappop(heap)
            paths.append((*(() if parent == BASE else paths[parent]), token))
            nodes.append(Node(parent, token, probability))
            push_children(len(nodes) - 1, paths[-1], -negated)
        return nodes
