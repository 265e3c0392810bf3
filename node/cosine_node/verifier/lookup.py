"""Drafts of the verifier's own, at no cost of network: what followed the same words before (`engine.ngram`)."""

import heapq
from collections.abc import Iterable
from typing import Final

from cosine_node.engine.ngram import FollowerIndex
from cosine_protocol.nodes import BASE, Node

MAX_NODES: Final = 12
MIN_REACH: Final = 0.1
"""Paths less likely than this are not worth their time: most drafters say more."""


class Lookup:
    """The text of one request, and the likeliest ways to go on after its end."""

    def __init__(self, tokens: Iterable[int]) -> None:
        self._index = FollowerIndex()
        self._index.extend(tokens)

    def extend(self, tokens: Iterable[int]) -> None:
        """Tokens were committed."""
        self._index.extend(tokens)

    def draft(self) -> list[Node]:
        """At most `MAX_NODES` nodes below the end of the text, the most probable paths, parents first."""
        length = len(self._index.tokens)
        nodes: list[Node] = []
        paths: list[tuple[int, ...]] = []
        heap: list[tuple[float, int, int, int, float]] = []

        def open_below(parent: int, path: tuple[int, ...], reach: float) -> None:
            self._index.extend(path)
            for token, chance in self._index.estimate().found:
                if reach * chance < MIN_REACH:
                    break
                heapq.heappush(heap, (-reach * chance, len(path), parent, token, chance))
            self._index.cut(length)

        open_below(BASE, (), 1.0)
        while heap and len(nodes) < MAX_NODES:
            missing, _, parent, token, chance = heapq.heappop(heap)
            paths.append((*(() if parent == BASE else paths[parent]), token))
            nodes.append(Node(parent, token, chance))
            open_below(len(nodes) - 1, paths[-1], -missing)
        return nodes
