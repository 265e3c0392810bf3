"""Routers to compare with that no strategy uses: a given order, the known expert, uniform chance and UCB1."""

import math
from collections.abc import Sequence

from cosine_lab.experiments.routing_replay import ReplayedRequest
from cosine_lab.rivals.router import Chance, JudgedRound, prompt_shares, shuffled
from cosine_p2p.strategy.router import DrafterFacts


class FixedRouter:
    """Picks the present authors in a given order; an author that the order lacks is never picked."""

    name = "fixed"

    def __init__(self, order: Sequence[int]) -> None:
        self._order = tuple(dict.fromkeys(order))
        self._present: dict[int, DrafterFacts] = {}

    def join(self, author: int, facts: DrafterFacts) -> None:
        self._present[author] = facts

    def leave(self, author: int) -> None:
        self._present.pop(author, None)

    def pick(self, count: int) -> tuple[int, ...]:
        return tuple(author for author in self._order if author in self._present)[:count]

    def learn(self, round_: JudgedRound) -> None:
        del round_

    def why(self, author: int) -> str:
        """The place of an author among all that could be picked."""
        picked = self.pick(len(self._present))
        return f"number {picked.index(author) + 1}" if author in picked else "never picked"


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


class UniformRouter(FixedRouter):
    """Picks among the present authors with equal probability, anew for every round: what any router has to beat."""

    name = "uniform"

    def __init__(self, chance: Chance) -> None:
        super().__init__(())
        self._chance = chance

    def pick(self, count: int) -> tuple[int, ...]:
        return tuple(shuffled(sorted(self._present), self._chance)[:count])

    def why(self, author: int) -> str:
        del author
        return f"drawn at random from {len(self._present)}"


class UcbRouter(FixedRouter):
    """Picks by mean reward + sqrt(`width` ln(rounds) / rounds of the author); the reward is accepted / drafted.

    UCB1 (Auer, Cesa-Bianchi, Fischer 2002) is what BanditSpec chooses drafters by. A bandit: it learns from the
    authors that were used alone. `width` is 2 in UCB1. With `prior_rounds` every author starts as if that many
    rounds had had its share of the prompt's likelihood as their reward.
    """

    name = "ucb"

    def __init__(self, *, width: float = 2.0, prior_rounds: float = 0.0) -> None:
        super().__init__(())
        self._width = width
        self._prior_rounds = prior_rounds
        self._rounds: dict[int, float] = {}
        self._rewards: dict[int, float] = {}

    def pick(self, count: int) -> tuple[int, ...]:
        shares = prompt_shares(self._present)
        tried = {author: self._rounds.get(author, 0.0) + self._prior_rounds for author in self._present}
        total = max(1.0, sum(tried.values()))

        def bound(author: int) -> float:
            if not tried[author]:
                return math.inf
            mean = (self._rewards.get(author, 0.0) + self._prior_rounds * shares[author]) / tried[author]
            return mean + math.sqrt(self._width * math.log(total) / tried[author])

        return tuple(sorted(self._present, key=lambda author: (-bound(author), author))[:count])

    def learn(self, round_: JudgedRound) -> None:
        for author in round_.used & self._present.keys():
            reward = round_.accepted[author] / max(1, round_.drafted[author])
            self._rounds[author] = self._rounds.get(author, 0.0) + 1.0
            self._rewards[author] = self._rewards.get(author, 0.0) + reward
