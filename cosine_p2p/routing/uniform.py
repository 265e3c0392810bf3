"""Random drafters: what any router has to beat."""

from cosine_p2p.routing.base import Chance, DrafterFacts, Round, shuffled


class UniformRouter:
    """Picks among the present authors with equal probability, anew for every round."""

    name = "uniform"

    def __init__(self, chance: Chance) -> None:
        self._chance = chance
        self._present: dict[int, DrafterFacts] = {}

    def join(self, author: int, facts: DrafterFacts) -> None:
        self._present[author] = facts

    def leave(self, author: int) -> None:
        self._present.pop(author, None)

    def pick(self, count: int) -> tuple[int, ...]:
        return tuple(shuffled(sorted(self._present), self._chance)[:count])

    def learn(self, round_: Round) -> None:
        del round_

    def why(self, author: int) -> str:
        del author
        return f"drawn at random from {len(self._present)}"
