"""The weight of each drafter of one request: a Bayesian mixture with sleeping experts.

Every drafter that drafted at a committed prefix is scored by the probability it gave the committed token, used or
not (full information, delayed feedback; Freund, Schapire, Singer, Warmuth 1997, "Using and combining predictors
that specialize"). A drafter that did not draft there keeps its weight relative to the mixture.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

MEMORY_TOKENS: Final = 48
"""A choice: about two sentences, within which a text hardly changes its subject."""
PRIOR_NATS: Final = 5.0
"""A choice: two or three badly predicted tokens outweigh what an author says of the prompt."""
MIN_LIKELIHOOD: Final = 0.02
"""Bounds what one token can cost an author, so that a single surprise ends nothing."""
_DECAY: Final = 1.0 - 1.0 / MEMORY_TOKENS
"""What is left of older evidence after one more token: a memory of `MEMORY_TOKENS`."""


@dataclass(slots=True)
class _Author:
    """`evidence` is the decayed log-likelihood of committed tokens, in nats."""

    prompt_nll: float
    evidence: float = 0.0


class Mixture:
    """Normalised weights of authors, from their likelihood of the last `MEMORY_TOKENS` or so tokens.

    At first the likelihood of the prompt decides. It is only an author's word, so however far apart two are, it is
    worth at most `PRIOR_NATS`, which two or three tokens outweigh; and it fades with what is committed.
    """

    def __init__(self) -> None:
        self._authors: dict[int, _Author] = {}
        self._prior = PRIOR_NATS
        self._sleeper_evidence = 0.0

    def join(self, author: int, *, prompt_nll: float) -> None:
        """Add an author by its mean negative log-likelihood of the prompt, nats a token.

        One that joins late stands where it would had it slept through what was committed before.
        """
        self._authors[author] = _Author(prompt_nll, self._sleeper_evidence)

    def leave(self, author: int) -> None:
        self._authors.pop(author, None)

    def weights(self) -> dict[int, float]:
        """Weights that sum to 1 over the present authors."""
        if not self._authors:
            return {}
        nearest = min(author.prompt_nll for author in self._authors.values())
        scores = {
            number: author.evidence - self._prior * (1.0 - math.exp(nearest - author.prompt_nll))
            for number, author in self._authors.items()
        }
        best = max(scores.values())
        raw = {number: math.exp(score - best) for number, score in scores.items()}
        total = sum(raw.values())
        return {number: value / total for number, value in raw.items()}

    def observe(self, likelihoods: Mapping[int, float]) -> None:
        """Score the authors that drafted by the probability each gave the committed token."""
        drafted = {number: p for number, p in likelihoods.items() if number in self._authors}
        if not drafted:
            return
        weights = self.weights()
        total = sum(weights[number] for number in drafted)
        mixed = sum(weights[number] * _floored(p) for number, p in drafted.items())
        asleep = mixed / total if total > 0 else MIN_LIKELIHOOD
        self._sleeper_evidence = _after(self._sleeper_evidence, asleep)
        for number, author in self._authors.items():
            author.evidence = _after(author.evidence, drafted.get(number, asleep))
        self._prior *= _DECAY


def _after(evidence: float, likelihood: float) -> float:
    """Evidence, in nats, after one more committed token."""
    return _DECAY * evidence + math.log(_floored(likelihood))


def _floored(likelihood: float) -> float:
    return min(1.0, max(MIN_LIKELIHOOD, likelihood))
