"""How much each drafter counts for one request: a Bayesian mixture with sleeping experts.

Every drafter that drafted at a committed prefix is scored by the probability it gave the committed token, used or
not (full information, delayed feedback; Freund, Schapire, Singer, Warmuth 1997, "Using and combining predictors
that specialize"). A drafter that did not speak there keeps its weight relative to the mixture.
"""

import math
from collections.abc import Mapping
from typing import Final

MEMORY_TOKENS: Final = 48
PRIOR_TOKENS: Final = 12.0
MIN_LIKELIHOOD: Final = 0.02


class Mixture:
    """Normalised weights of authors, from their likelihood of the last `MEMORY_TOKENS` or so tokens."""

    def __init__(self) -> None:
        self._scores: dict[int, float] = {}

    def join(self, author: int, *, prompt_nll: float) -> None:
        """Add an author; its likelihood of the prompt (nats a token) counts as `PRIOR_TOKENS` tokens."""
        self._scores[author] = -PRIOR_TOKENS * prompt_nll

    def leave(self, author: int) -> None:
        self._scores.pop(author, None)

    @property
    def authors(self) -> tuple[int, ...]:
        return tuple(self._scores)

    def weights(self) -> dict[int, float]:
        """Weights that sum to 1 over the present authors."""
        if not self._scores:
            return {}
        best = max(self._scores.values())
        raw = {author: math.exp(score - best) for author, score in self._scores.items()}
        total = sum(raw.values())
        return {author: value / total for author, value in raw.items()}

    def observe(self, likelihoods: Mapping[int, float]) -> None:
        """Score the authors that spoke by the probability each gave the committed token."""
        spoken = {author: p for author, p in likelihoods.items() if author in self._scores}
        if not spoken:
            return
        weights = self.weights()
        total = sum(weights[author] for author in spoken)
        mixed = sum(weights[author] * _floored(p) for author, p in spoken.items())
        asleep = mixed / total if total > 0 else MIN_LIKELIHOOD
        keep = 1.0 - 1.0 / MEMORY_TOKENS
        for author in self._scores:
            gained = math.log(_floored(spoken.get(author, asleep)))
            self._scores[author] = keep * self._scores[author] + gained


def _floored(likelihood: float) -> float:
    return min(1.0, max(MIN_LIKELIHOOD, likelihood))
