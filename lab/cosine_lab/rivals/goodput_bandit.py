"""SPIN's selection (Chen et al. 2025): goodput as reward, periods of exploration and of exploitation in turn.

The lengths of its periods are not published; they are options here. `matching` assigns several requests to
drafters of bounded capacity by the goodputs that this estimates.
"""

from dataclasses import dataclass
from typing import Final

from cosine_lab.rivals.router import Chance, JudgedRound, prompt_shares, shuffled
from cosine_p2p.strategy.router import DrafterFacts

PRIOR_TOKENS: Final = 4
"""A choice: the usual length of a draft, in which prior rounds are counted."""


@dataclass(slots=True)
class DraftedRounds:
    """Rounds of one drafter: accepted tokens and the seconds of drafting of all of them together."""

    rounds: float = 0.0
    tokens: float = 0.0
    draft_s: float = 0.0


class GoodputRouter:
    """Explores for `explore_rounds`, then exploits for `exploit_rounds`, and so on.

    A period of exploitation is `growth` times as long as the one before. A bandit: it learns from the authors that
    were used alone. What it knows of an author loses `forgetting` of its weight with every round of that author.
    With `prior_rounds` an author starts as if it had drafted in that many rounds: as it did for earlier requests
    where that is known, else `PRIOR_TOKENS` in each, of which its share of the prompt's likelihood was accepted.
    A request that begins with such knowledge begins by exploiting it.
    """

    name = "goodput-bandit"

    def __init__(
        self,
        chance: Chance,
        *,
        explore_rounds: int = 2,
        exploit_rounds: int = 8,
        growth: float = 1.0,
        forgetting: float = 0.0,
        prior_rounds: float = 0.0,
    ) -> None:
        self._chance = chance
        self._explore_rounds = explore_rounds
        self._exploit_rounds = float(exploit_rounds)
        self._growth = growth
        self._keep = 1.0 - forgetting
        self._prior_rounds = prior_rounds
        self._known: dict[int, DraftedRounds] = {}
        self._facts: dict[int, DrafterFacts] = {}
        self._arms: dict[int, DraftedRounds] = {}
        self._explores = True
        self._left_rounds = float(explore_rounds)

    def join(self, author: int, facts: DrafterFacts, known: DraftedRounds | None = None) -> None:
        """Make an author available; `known` is what it drafted for earlier requests."""
        self._facts[author] = facts
        self._arms[author] = DraftedRounds()
        if known is not None and self._prior_rounds:
            self._known[author] = known
            if not any(arm.rounds for arm in self._arms.values()):
                self._explores, self._left_rounds = False, self._exploit_rounds

    def leave(self, author: int) -> None:
        self._facts.pop(author, None)
        self._arms.pop(author, None)

    def goodputs(self) -> dict[int, float]:
        """Accepted tokens per second of drafting, for every present author; 0 for one without any evidence."""
        shares = prompt_shares(self._facts)
        return {author: self._goodput(author, shares[author]) for author in self._arms}

    def pick(self, count: int) -> tuple[int, ...]:
        goodputs = self.goodputs()
        order = shuffled(sorted(self._arms), self._chance)
        if self._explores:
            order.sort(key=lambda author: self._arms[author].rounds)
        else:
            order.sort(key=lambda author: -goodputs[author])
        return tuple(order[:count])

    def learn(self, round_: JudgedRound) -> None:
        for author in round_.used & self._arms.keys():
            arm = self._arms[author]
            arm.rounds += 1
            arm.tokens = self._keep * arm.tokens + round_.accepted[author]
            arm.draft_s = self._keep * arm.draft_s + round_.draft_s[author]
        self._left_rounds -= 1.0
        if self._left_rounds >= 1.0:
            return
        self._explores = not self._explores
        if self._explores:
            self._left_rounds = float(self._explore_rounds)
        else:
            self._left_rounds = self._exploit_rounds
            self._exploit_rounds *= self._growth

    def why(self, author: int) -> str:
        period = "exploration" if self._explores else "exploitation"
        return f"{self.goodputs()[author]:.0f} accepted tokens per second of drafting, {period}"

    def _goodput(self, author: int, share: float) -> float:
        arm = self._arms[author]
        if known := self._known.get(author):
            weight = self._prior_rounds / known.rounds
            prior_tokens, prior_s = weight * known.tokens, weight * known.draft_s
        else:
            drafted = self._prior_rounds * PRIOR_TOKENS
            prior_tokens, prior_s = drafted * share, drafted * self._facts[author].token_s
        draft_s = arm.draft_s + prior_s
        return (arm.tokens + prior_tokens) / draft_s if draft_s > 0.0 else 0.0
