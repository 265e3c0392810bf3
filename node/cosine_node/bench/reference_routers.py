"""Routers to compare with that no strategy uses: a given order, the known expert, uniform chance and UCB1."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from cosine_node.bench.routing_replay import ReplayedRequest
from cosine_p2p.routing.base import DrafterFacts
from cosine_p2p.strategies.published.router import Chance, JudgedRound, prompt_shares, shuffled


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

    def learn(self, round_: JudgedRound) -> None:
        del round_

    def why(self, author: int) -> str:
        if author not in self._order:
            return "not in the given order"
        return f"number {self._order.index(author) + 1} in the given order"


class LabelRouter(FixedRouter):
    """Knows the domain of every position: what no router can be told, for comparison."""

    name = "expert-by-label"

    def __init__(self, request: ReplayedRequest) -> None:
        super().__init__(tuple(request.chains))
        self._request = request
        self._position = 0

    def pick(self, count: int) -> tuple[int, ...]:
        expert = self._request.expert_at(self._position)
        return tuple(sorted(super().pick(len(self._request.chains)), key=lambda author: author != expert))[:count]

    def learn(self, round_: JudgedRound) -> None:
        self._position += len(round_.likelihoods)


class UniformRouter:
    """Picks among the present authors with equal probability, anew for every round: what any router has to beat."""

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

    def learn(self, round_: JudgedRound) -> None:
        del round_

    def why(self, author: int) -> str:
        del author
        return f"drawn at random from {len(self._present)}"


@dataclass(slots=True)
class _Tries:
    rounds: float = 0.0
    reward: float = 0.0


class UcbRouter:
    """Picks by mean reward + sqrt(`width` ln(rounds) / rounds of the author); the reward is accepted / drafted.

    UCB1 (Auer, Cesa-Bianchi, Fischer 2002) is what BanditSpec chooses drafters by. A bandit: it learns from the
    authors that were used alone. `width` is 2 in UCB1. With `prior_rounds` every author starts as if that many
    rounds had had its share of the prompt's likelihood as their reward.
    """

    name = "ucb"

    def __init__(self, *, width: float = 2.0, prior_rounds: float = 0.0) -> None:
        self._width = width
        self._prior_rounds = prior_rounds
        self._facts: dict[int, DrafterFacts] = {}
        self._arms: dict[int, _Tries] = {}

    def join(self, author: int, facts: DrafterFacts) -> None:
        self._facts[author] = facts
        self._arms[author] = _Tries()

    def leave(self, author: int) -> None:
        self._facts.pop(author, None)
        self._arms.pop(author, None)

    def pick(self, count: int) -> tuple[int, ...]:
        bounds = self._bounds()
        return tuple(sorted(bounds, key=lambda author: (-bounds[author], author))[:count])

    def learn(self, round_: JudgedRound) -> None:
        for author in round_.used & self._arms.keys():
            arm = self._arms[author]
            arm.rounds += 1.0
            arm.reward += round_.accepted[author] / max(1, round_.drafted[author])

    def why(self, author: int) -> str:
        arm = self._arms[author]
        bound = self._bounds()[author]
        return f"{self._mean(author):.2f} of its tokens accepted in {arm.rounds:.0f} rounds, bound {bound:.2f}"

    def _mean(self, author: int) -> float:
        arm = self._arms[author]
        prior = self._prior_rounds * prompt_shares(self._facts)[author]
        return (arm.reward + prior) / max(1e-9, arm.rounds + self._prior_rounds)

    def _bounds(self) -> dict[int, float]:
        tried = {author: arm.rounds + self._prior_rounds for author, arm in self._arms.items()}
        total = max(1.0, sum(tried.values()))
        return {
            author: self._mean(author) + math.sqrt(self._width * math.log(total) / rounds) if rounds else math.inf
            for author, rounds in tried.items()
        }
