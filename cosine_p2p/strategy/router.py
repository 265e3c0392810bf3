"""The router: full information instead of a bandit (HedgeSpec, arXiv 2510.20064).

Each author that drafted from the committed prefix is scored on the committed text, whether its draft was used or
not. Evidence about others ages; the better the leader predicts, the less they are tried.
"""

import math
from collections import deque
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Final

from cosine_p2p.strategy.base import DrafterStarted

# The text is remembered for about two sentences, and the prompt, which the author reports itself, is worth two or
# three mispredicted tokens. By the prompt alone requests that change their subject get half of the best drafter's
# speed (decision 2). With half the memory a single passage would replace a drafter, with twice as much a new
# subject would be followed later.
MEMORY_TOKENS: Final = 48
PRIOR_NATS: Final = 5.0
MIN_LIKELIHOOD: Final = 0.02  # Bounds a token's cost to 3.9 nats, so that a single token decides nothing.
_DECAY: Final = 1.0 - 1.0 / MEMORY_TOKENS  # Factor of evidence per token.


@dataclass(slots=True)
class _Author:
    """`evidence` is the decayed log-likelihood of committed tokens, in nats."""

    prompt_nll: float
    evidence: float = 0.0


class Mixture:
    """Normalised weights of authors, from their likelihood of about the last `MEMORY_TOKENS` tokens.

    A Bayesian mixture with sleeping experts: an author that did not draft keeps its weight relative to the mixture
    (Freund, Schapire, Singer, Warmuth 1997, "Using and combining predictors that specialize"). The prior is the
    reported likelihood of the prompt, worth at most `PRIOR_NATS`; it fades with committed tokens.
    """

    def __init__(self) -> None:
        self._authors: dict[int, _Author] = {}
        self._prior = PRIOR_NATS

    def join(self, author: int, *, prompt_nll: float) -> None:
        """Add an author without evidence, by its NLL of the prompt in nats per token."""
        self._authors[author] = _Author(prompt_nll)

    def leave(self, author: int) -> None:
        self._authors.pop(author, None)

    def weights(self) -> dict[int, float]:
        """Return the weights of the present authors; they sum to 1."""
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
        """Score the authors that drafted by their probabilities of the committed token."""
        drafted = {number: p for number, p in likelihoods.items() if number in self._authors}
        if not drafted:
            return
        weights = self.weights()
        total = sum(weights[number] for number in drafted)
        mixed = sum(weights[number] * _floored(p) for number, p in drafted.items())
        asleep = mixed / total if total > 0 else MIN_LIKELIHOOD
        for number, author in self._authors.items():
            author.evidence = _DECAY * author.evidence + math.log(_floored(drafted.get(number, asleep)))
        self._prior *= _DECAY


def _floored(likelihood: float) -> float:
    return min(1.0, max(MIN_LIKELIHOOD, likelihood))


CLOSE_WEIGHTS: Final = 0.9
"""Authors with this share of the leader's weight are ranked by RTT. All constants of this router were tuned on the
split tune."""
TRIAL_TOKENS: Final = 8  # Tokens within which a trial must change the leader.
MIN_TRIAL_ROUNDS: Final = 2  # Rounds to the next trial after a success; doubled after each failure.
MAX_TRIAL_ROUNDS: Final = 32  # An author that has become good is found within a paragraph.
ALONE_FACTOR: Final = 60  # With a single slot, factor by which trials are rarer with a perfect leader.
USUAL_TOKENS: Final = 32  # Number of tokens over which the leader's likelihood is averaged.
SLACK_NATS: Final = 0.5  # Loss per token that is no collapse: the variation of steady text.
ALARM_NATS: Final = 10.0  # Sum of losses beyond the slack that is a collapse.
COLLAPSED_NATS: Final = 1.0  # Loss per token of a leader outside its subject.
STALE_PROMPT: Final = 0.3  # Remaining weight of the prompt once the text has left its subject.

STAND_IN: Final = -1
"""The number in the mixture of a virtual author that predicts as a leader outside its subject. It is scored when a
single author is active, since the mixture compares only authors that draft."""


def nats_of(likelihood: float) -> float:
    """Return the negative log-likelihood, bounded as in the mixture."""
    return -math.log(max(MIN_LIKELIHOOD, likelihood))


class LeaderWatch:
    """Detects a collapse of the leader's predictions (one-sided CUSUM, Page 1954)."""

    def __init__(self) -> None:
        self._tokens = 0
        self.usual_nats = 0.0
        """Mean negative log-likelihood of the latest committed tokens for which the leader drafted."""
        self._missing_nats = 0.0

    @property
    def collapsed_likelihood(self) -> float | None:
        """The leader's expected probability of a token outside its subject, None before `TRIAL_TOKENS` tokens."""
        return math.exp(-self.usual_nats - COLLAPSED_NATS) if self._tokens >= TRIAL_TOKENS else None

    @property
    def has_collapsed(self) -> bool:
        return self._missing_nats > ALARM_NATS

    def rearm(self) -> None:
        self._missing_nats = 0.0

    def note(self, likelihood: float) -> None:
        nats = nats_of(likelihood)
        if self._tokens >= TRIAL_TOKENS:
            self._missing_nats = max(0.0, self._missing_nats + nats - self.usual_nats - SLACK_NATS)
        self._tokens += 1
        self.usual_nats += (nats - self.usual_nats) / min(self._tokens, USUAL_TOKENS)


@dataclass(slots=True)
class _RankedAuthor:
    """An author: `silent_rounds` without drafts; `is_unproven` since a collapse; `is_promising` on its trial."""

    facts: DrafterStarted
    silent_rounds: int
    is_unproven: bool = False
    is_promising: bool = False


class HedgeRouter:
    """Ranks authors by their weight in a Bayesian mixture, by distance if weights are close.

    The last slot sometimes tries the author that has not drafted for longest, unless `TRIAL_TOKENS` perfect tokens
    could not make it the leader. An author that predicts better than the leader keeps the slot; a failed trial
    doubles the time to the next one. A collapse of the leader's likelihood means a new subject: evidence is reset,
    the prompt counts less, and all slots but the first try every author again. With a single slot a trial costs a
    round, so trials are rarer the better the leader predicts.
    """

    def __init__(self) -> None:
        self._authors: dict[int, _RankedAuthor] = {}
        self._mixture = Mixture()
        self._likelihoods: deque[Mapping[int, float]] = deque(maxlen=MEMORY_TOKENS)
        self._watch = LeaderWatch()
        self._prompt_weight = 1.0
        self._trial_rounds = MIN_TRIAL_ROUNDS
        self._rounds_since_trial = 0

    def join(self, facts: DrafterStarted) -> None:
        silent_rounds = max((1, *(known.silent_rounds for known in self._authors.values())))
        if known := self._authors.get(facts.author):
            known.facts, known.silent_rounds = facts, silent_rounds
        else:
            self._authors[facts.author] = _RankedAuthor(facts, silent_rounds)
        self._rebuild()

    def leave(self, author: int) -> None:
        self._mixture.leave(author)
        self._authors.pop(author, None)

    def weights(self) -> dict[int, float]:
        """Return the weight of every author; with that of the stand-in they sum to 1."""
        weights = self._mixture.weights()
        weights.pop(STAND_IN, None)
        return weights

    def pick(self, count: int) -> tuple[list[int], list[int]]:
        """Return up to `count` authors that should draft next, the best first, and those of them on trial."""
        ranked = self._ranked()
        proven, tried = self._split(ranked, count)
        rest = [author for author in ranked if author not in proven and author not in tried]
        return (proven + tried + rest)[: max(0, count)], tried

    def learn(self, round_: Sequence[Mapping[int, float]]) -> None:
        """Learn from a commit: for each of its tokens, the likelihood by each author that drafted there."""
        ranked = self._ranked()
        if not ranked:
            return
        leader, authors = ranked[0], frozenset[int]().union(*round_)
        for likelihoods in round_:
            stand_in = self._watch.collapsed_likelihood
            if len(authors) == 1 and stand_in is not None:
                scored: Mapping[int, float] = {**likelihoods, STAND_IN: stand_in}
            else:
                scored = likelihoods
            self._mixture.observe(scored)
            self._likelihoods.append(scored)
            if leader in likelihoods:
                self._watch.note(likelihoods[leader])
        self._pace_trials(leader, authors, round_)
        if self._watch.has_collapsed:
            self._start_anew()

    def why(self, author: int) -> str:
        silent = self._authors[author].silent_rounds
        since = f", silent for {silent} round{'' if silent == 1 else 's'}" if silent else ""
        return f"weight {100 * self.weights()[author]:.0f} %{since}"

    def _ranked(self) -> list[int]:
        weights = self.weights()
        ranked = sorted(weights, key=lambda author: (-weights[author], author))
        close = [author for author in ranked if weights[author] >= CLOSE_WEIGHTS * weights[ranked[0]]]
        facts = {author: self._authors[author].facts for author in close}
        nearest = sorted(close, key=lambda author: facts[author].rtt_s + facts[author].token_s)
        return nearest + ranked[len(close) :]

    def _split(self, ranked: list[int], count: int) -> tuple[list[int], list[int]]:
        # After a collapse unproven authors, known by the prompt alone, take no slot from a proven one.
        proven = [author for author in ranked if not self._authors[author].is_unproven] or ranked
        kept = proven[: max(0, count - self._trial_slots(count))]
        return kept, self._worth_trying(ranked, kept)[: max(0, count - len(kept))]

    def _trial_slots(self, count: int) -> int:
        if any(known.is_unproven for known in self._authors.values()):
            return max(1, count - 1)
        if any(known.is_promising for known in self._authors.values()):
            return 1
        cost = ALONE_FACTOR * math.exp(-self._watch.usual_nats) if count == 1 else 1.0
        return int(self._rounds_since_trial + 1 >= self._trial_rounds * cost)

    def _worth_trying(self, ranked: list[int], kept: list[int]) -> list[int]:
        weights = self.weights()
        least = weights[ranked[0]] * math.exp(-TRIAL_TOKENS * self._watch.usual_nats) if ranked else 0.0
        hopeful = []
        for author in ranked:
            known = self._authors[author]
            is_new = known.is_promising or known.silent_rounds > 0
            if author not in kept and is_new and (known.is_unproven or weights[author] >= least):
                hopeful.append(author)
        return sorted(
            hopeful,
            key=lambda author: (not self._authors[author].is_promising, -self._authors[author].silent_rounds),
        )

    def _pace_trials(self, leader: int, authors: Set[int], round_: Sequence[Mapping[int, float]]) -> None:
        on_trial = [
            author
            for author, known in self._authors.items()
            if author in authors and author != leader and (known.is_promising or known.silent_rounds)
        ]
        for author, known in self._authors.items():
            known.is_promising = author in on_trial and self._gain_nats(author, leader, authors, round_) > 0.0
        if any(known.is_promising for known in self._authors.values()) or self._ranked()[0] != leader:
            self._trial_rounds = MIN_TRIAL_ROUNDS
        elif on_trial:
            self._trial_rounds = min(2 * self._trial_rounds, MAX_TRIAL_ROUNDS)
        self._rounds_since_trial = 0 if on_trial else self._rounds_since_trial + 1
        for author, known in self._authors.items():
            has_drafted = author in authors
            known.silent_rounds = 0 if has_drafted else known.silent_rounds + 1
            known.is_unproven = known.is_unproven and not has_drafted

    def _gain_nats(
        self, author: int, leader: int, authors: Set[int], round_: Sequence[Mapping[int, float]]
    ) -> float:
        """Return the nats by which an author predicted better than the leader did, or usually does."""
        usual = self._watch.collapsed_likelihood if leader not in authors else None
        gain_nats = 0.0
        for likelihoods in round_:
            against = likelihoods.get(leader, usual)
            if author in likelihoods and against is not None:
                gain_nats += nats_of(against) - nats_of(likelihoods[author])
        return gain_nats

    def _start_anew(self) -> None:
        self._likelihoods.clear()
        self._watch.rearm()
        self._prompt_weight = min(self._prompt_weight, STALE_PROMPT)
        for known in self._authors.values():
            known.is_unproven = known.silent_rounds > 0
        self._trial_rounds = MIN_TRIAL_ROUNDS
        self._rebuild()

    def _rebuild(self) -> None:
        """Replay the last tokens with all authors; one added later would have too much evidence."""
        self._mixture = Mixture()
        nlls = {author: known.facts.prompt_nll for author, known in self._authors.items()}
        for author, nll in {**nlls, STAND_IN: max(nlls.values(), default=0.0)}.items():
            self._mixture.join(author, prompt_nll=self._prompt_weight * nll)
        for likelihoods in self._likelihoods:
            self._mixture.observe(likelihoods)
