"""A given order that nothing changes: one drafter for ever, or the best one known in hindsight."""

from collections.abc import Sequence

from cosine_p2p.routing.base import DrafterFacts, Round


class FixedRouter:
    """Picks the present authors in a given order; an author that the order lacks is never picked."""

    name = "fixed"

    def __init__(self, order: Sequence[int]) -> None:
        self._order = tuple(dict.fromkeys(order))
        self._present: set[int] = set()

    def join(self, author: int, facts: DrafterFacts) -> None:
        del facts
        self._present.add(author)

    def leave(self, author: int) -> None:
        self._present.discard(author)

    def pick(self, count: int) -> tuple[int, ...]:
        return tuple(author for author in self._order if author in self._present)[:count]

    def learn(self, round_: Round) -> None:
        del round_

    def why(self, author: int) -> str:
        if author not in self._order:
            return "not in the given order"
        return f"number {self._order.index(author) + 1} in the given order"
