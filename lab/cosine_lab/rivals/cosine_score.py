"""The routing score of CoSine (arXiv 2503.10325): confidence and agreement, smoothed over rounds.

The paper's agreement is the cosine similarity between the embeddings of an author's token and of the committed one.
A drafter's embeddings are not ours to see, so it is reduced to token equality, its value for equal tokens. The
constants are not published; they are options here.
"""

from dataclasses import dataclass

from cosine_lab.rivals.router import Chance, JudgedRound, prompt_shares, shuffled
from cosine_p2p.strategy.router import DrafterFacts


@dataclass(slots=True)
class _Score:
    value: float
    rounds: int = 0


class CosineScoreRouter:
    """Picks by M, the harmonic mean of confidence and agreement; every slot may explore instead.

    A slot goes to the author tried least with probability `explore_share` (the paper's alpha) while the used
    author's last accepted length is below `short_tokens` (tau), else with probability `exploit_share` (beta).
    `smoothing` is the weight of the newest round in M. An author not tried yet has `untried_score`, or, with
    `has_prior`, its share of the prompt's likelihood as M.
    """

    name = "cosine-score"

    def __init__(
        self,
        chance: Chance,
        *,
        explore_share: float = 0.3,
        exploit_share: float = 0.05,
        short_tokens: float = 2.0,
        smoothing: float = 0.3,
        untried_score: float = 0.5,
        has_prior: bool = False,
    ) -> None:
        self._chance = chance
        self._explore_share = explore_share
        self._exploit_share = exploit_share
        self._short_tokens = short_tokens
        self._smoothing = smoothing
        self._untried_score = untried_score
        self._has_prior = has_prior
        self._facts: dict[int, DrafterFacts] = {}
        self._scores: dict[int, _Score] = {}
        self._last_accepted = 0

    def join(self, author: int, facts: DrafterFacts) -> None:
        self._facts[author] = facts
        self._scores[author] = _Score(self._untried_score)
        shares = prompt_shares(self._facts)
        for number, score in self._scores.items():
            if self._has_prior and not score.rounds:
                score.value = shares[number]

    def leave(self, author: int) -> None:
        self._facts.pop(author, None)
        self._scores.pop(author, None)

    def pick(self, count: int) -> tuple[int, ...]:
        is_short = self._last_accepted < self._short_tokens
        share = self._explore_share if is_short else self._exploit_share
        order = {author: place for place, author in enumerate(shuffled(sorted(self._scores), self._chance))}
        chosen: list[int] = []
        for _ in range(min(count, len(order))):
            rest = [author for author in order if author not in chosen]
            if self._chance.random() < share:
                chosen.append(min(rest, key=lambda author: (self._scores[author].rounds, order[author])))
            else:
                chosen.append(max(rest, key=lambda author: (self._scores[author].value, -order[author])))
        return tuple(sorted(chosen, key=lambda author: -self._scores[author].value))

    def learn(self, round_: JudgedRound) -> None:
        self._last_accepted = max((round_.accepted[author] for author in round_.used), default=0)
        for author, confidence in round_.confidence.items():
            if author not in self._scores:
                continue
            score, agreement = self._scores[author], round_.agreement[author]
            total = confidence + agreement
            harmonic_mean = 2.0 * confidence * agreement / total if total > 0.0 else 0.0
            is_blank = not score.rounds and not self._has_prior
            score.value += (1.0 if is_blank else self._smoothing) * (harmonic_mean - score.value)
            score.rounds += 1

    def why(self, author: int) -> str:
        score = self._scores[author]
        return f"score {score.value:.2f} after {score.rounds} rounds"
