"""The router: full information instead of a bandit (HedgeSpec, arXiv 2510.20064).

Each author that drafted from the committed prefix is scored on the committed text, whether its draft was used or
not. Those that are silent stay near enough to be asked again soon when the text changes its subject.
"""

import math
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from cosine_p2p.strategy.base import DrafterStarted

# The text is remembered for about two sentences, and the prompt, which the author reports itself, is worth two or
# three mispredicted tokens. By the prompt alone requests that change their subject get half of the best drafter's
# speed (decision 2). With half the memory a single passage would replace a drafter, with twice as much a new
# subject would be followed later.
MEMORY_TOKENS: Final = 48
PRIOR_NATS: Final = 5.0
FARTHEST_NATS: Final = 10.0  # Maximum distance to the best: a few tokens of a new subject make up for it.
MIN_LIKELIHOOD: Final = 0.02  # Bounds a token's cost to 3.9 nats, so that a single token decides nothing.
_DECAY: Final = 1.0 - 1.0 / MEMORY_TOKENS  # Factor of evidence per token.
CLOSE_WEIGHTS: Final = 0.9
"""Authors with this share of the leader's weight are ranked by RTT. All constants of this router were tuned on the
split tune."""
STAND_IN: Final = -1
"""The number in the mixture of a virtual author, somewhat worse than the leader usually is. It is scored when a
single author drafts, since the mixture compares only authors that draft: a leader outside its subject falls behind
it, and so behind those that are silent."""
WORSE_NATS: Final = 0.5  # The stand-in's loss per token: the variation of steady text.
WORST_NATS: Final = 2.0  # The stand-in's maximum, which a leader that is seldom right exceeds.
FIRST_TOKENS: Final = 8  # Weight in tokens of a new leader's usual loss.
USUAL_TOKENS: Final = 64  # Tokens over which the leader's loss is averaged.


class HedgeRouter:
    """Ranks authors by their weights, from their likelihood of about the last `MEMORY_TOKENS` tokens.

    A Bayesian mixture with sleeping experts: an author that did not draft keeps its weight relative to the mixture
    (Freund, Schapire, Singer, Warmuth 1997, "Using and combining predictors that specialize"). The prior is the
    reported likelihood of the prompt, worth at most `PRIOR_NATS`; it fades with committed tokens. Of authors of
    close weights the nearest is the first.
    """

    def __init__(self) -> None:
        self._authors: dict[int, DrafterStarted] = {}
        # Decayed log-likelihoods of committed tokens in nats, also of the stand-in.
        self._evidence: dict[int, float] = {}
        self._prior = PRIOR_NATS
        self._likelihoods: deque[Mapping[int, float]] = deque(maxlen=MEMORY_TOKENS)
        self._usual_nats = WORST_NATS
        self._leader_tokens = FIRST_TOKENS

    def join(self, facts: DrafterStarted) -> None:
        """Add an author, and replay the last tokens; one added later would have too much evidence."""
        self._authors[facts.author] = facts
        self._evidence, self._prior = dict.fromkeys((*self._authors, STAND_IN), 0.0), PRIOR_NATS
        for likelihoods in self._likelihoods:
            self._observe(likelihoods)

    def leave(self, author: int) -> None:
        self._authors.pop(author, None)
        self._evidence.pop(author, None)

    def weights(self) -> dict[int, float]:
        """Return the weight of every author; they sum to 1."""
        return self._shares(self._authors)

    def ranked(self) -> list[int]:
        """Return all authors, the best first."""
        weights = self.weights()
        ranked = sorted(weights, key=lambda author: (-weights[author], author))
        close = [author for author in ranked if weights[author] >= CLOSE_WEIGHTS * weights[ranked[0]]]
        facts = {author: self._authors[author] for author in close}
        nearest = sorted(close, key=lambda author: facts[author].rtt_s + facts[author].token_s)
        return nearest + ranked[len(close) :]

    def learn(self, round_: Sequence[Mapping[int, float]]) -> None:
        """Learn from a commit: for each of its tokens, the likelihood by each author that drafted there."""
        if not self._authors:
            return
        leader, authors = self.ranked()[0], frozenset[int]().union(*round_)
        for likelihoods in round_:
            scored = likelihoods
            if len(authors) == 1:
                scored = {**likelihoods, STAND_IN: math.exp(-min(self._usual_nats + WORSE_NATS, WORST_NATS))}
            self._observe(scored)
            self._likelihoods.append(scored)
            if leader in likelihoods:
                self._leader_tokens = min(self._leader_tokens + 1, USUAL_TOKENS)
                nats = -math.log(_floored(likelihoods[leader]))
                self._usual_nats += (nats - self._usual_nats) / self._leader_tokens

    def why(self, author: int) -> str:
        return f"weight {100 * self.weights()[author]:.0f} %"

    def _shares(self, authors: Iterable[int]) -> dict[int, float]:
        """Return the weights of some authors, which sum to 1."""
        nlls = {author: facts.prompt_nll for author, facts in self._authors.items()}
        # The stand-in knows the prompt no better than any author.
        nlls[STAND_IN] = max(nlls.values(), default=0.0)
        nearest = min(nlls.values())
        scores = {
            author: self._evidence[author] - self._prior * (1.0 - math.exp(nearest - nlls[author]))
            for author in authors
        }
        best = max(scores.values(), default=0.0)
        raw = {author: math.exp(score - best) for author, score in scores.items()}
        total = sum(raw.values())
        return {author: value / total for author, value in raw.items()}

    def _observe(self, likelihoods: Mapping[int, float]) -> None:
        """Score the authors that drafted by their probabilities of the committed token."""
        drafted = {author: p for author, p in likelihoods.items() if author in self._evidence}
        if not drafted:
            return
        weights = self._shares(self._evidence)
        total = sum(weights[author] for author in drafted)
        mixed = sum(weights[author] * _floored(p) for author, p in drafted.items())
        asleep = mixed / total if total > 0 else MIN_LIKELIHOOD
        evidence = {
            author: _DECAY * known + math.log(_floored(drafted.get(author, asleep)))
            for author, known in self._evidence.items()
        }
        least = max(evidence.values()) - FARTHEST_NATS
        self._evidence = {author: max(known, least) for author, known in evidence.items()}
        self._prior *= _DECAY


def _floored(likelihood: float) -> float:
    return min(1.0, max(MIN_LIKELIHOOD, likelihood))
