"""Our router: full information instead of a bandit (HedgeSpec, arXiv 2510.20064).

An author that drafted from the committed prefix is scored on the committed text, used or not. Evidence about others
grows stale; how much is spent on trying them follows from how well the leader predicts.
"""

import math
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True, kw_only=True)
class DrafterFacts:
    """Before it drafts: `prompt_nll` in nats a token, `token_s` for a drafted token, `rtt_s` the round trip."""

    prompt_nll: float
    token_s: float
    rtt_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """`authors` drafted from the committed prefix; `likelihoods` are by author, for each committed token."""

    authors: frozenset[int]
    likelihoods: tuple[Mapping[int, float], ...]


# How much a token says. What was seen may be outdated, and what is said a lie: so a text is remembered for about
# two sentences, a prompt is worth two or three badly predicted tokens, and one token less than that. By the prompt
# alone requests that change their subject get half of what the best drafter would bring (decision 2). With half the
# memory a drafter would go over one passage, with twice as much a new subject would be followed later.
MEMORY_TOKENS: Final = 48
PRIOR_NATS: Final = 5.0
MIN_LIKELIHOOD: Final = 0.02  # Bounds a token's cost, 3.9 nats, so that a single surprise ends nothing.
_DECAY: Final = 1.0 - 1.0 / MEMORY_TOKENS  # What is left of evidence after a token: `MEMORY_TOKENS`.


@dataclass(slots=True)
class _Author:
    """`evidence` is the decayed log-likelihood of committed tokens, in nats."""

    prompt_nll: float
    evidence: float = 0.0


class Mixture:
    """Normalised weights of authors, from their likelihood of the last `MEMORY_TOKENS` or so tokens.

    A Bayesian mixture with sleeping experts: an author that did not draft keeps its weight relative to the mixture
    (Freund, Schapire, Singer, Warmuth 1997, "Using and combining predictors that specialize"). At first the
    likelihood of the prompt decides, an author's word, worth at most `PRIOR_NATS`; it fades with what is committed.
    """

    def __init__(self) -> None:
        self._authors: dict[int, _Author] = {}
        self._prior = PRIOR_NATS
        self._sleeper_evidence = 0.0

    def join(self, author: int, *, prompt_nll: float) -> None:
        """Add an author by its NLL of the prompt, nats a token, as if it had slept until now."""
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


CLOSE_WEIGHTS: Final = 0.9
"""Authors with this part of the leader's weight are ranked by RTT. All constants of this router were tuned on the
split tune."""
TRIAL_TOKENS: Final = 8  # Tokens that a trial may take to change who leads.
MIN_TRIAL_ROUNDS: Final = 2  # Rounds to the next trial after a find; twice as many after each in vain.
MAX_TRIAL_ROUNDS: Final = 32  # So that one that has become good is found within a paragraph.
ALONE_FACTOR: Final = 60  # With a single slot, how many times rarer trials are beside a perfect leader.
USUAL_TOKENS: Final = 32  # Tokens over which the leader's usual likelihood is averaged.
SLACK_NATS: Final = 0.5  # Loss of a token that counts for no collapse: steady text varies so much.
ALARM_NATS: Final = 10.0  # Loss beyond the slack, over all tokens, that is a collapse.
COLLAPSED_NATS: Final = 1.0  # How much less likely the leader makes a token off its subject.
STALE_PROMPT: Final = 0.3  # What is left of the prompt's differences once the text has left its subject.

STAND_IN: Final = -1
"""Number in the mixture of an imagined author that predicts as a leader off its subject does. It counts where a
single author is active: the mixture compares only those that draft."""


def nats_of(likelihood: float) -> float:
    """Negative log-likelihood, bounded as in the mixture."""
    return -math.log(max(MIN_LIKELIHOOD, likelihood))


class LeaderWatch:
    """Watches how well the leader predicts the text, and whether that collapsed (one-sided CUSUM, Page 1954)."""

    def __init__(self) -> None:
        self._tokens = 0
        self.usual_nats = 0.0
        """Mean negative log-likelihood, lately, of the committed tokens where the leader drafted."""
        self._missing_nats = 0.0

    @property
    def collapsed_likelihood(self) -> float | None:
        """The probability the leader gives a token off its subject, None while too few were seen."""
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
    """`silent_rounds` without drafts; `is_unproven` since the subject changed; `is_promising` on its trial."""

    facts: DrafterFacts
    silent_rounds: int
    is_unproven: bool = False
    is_promising: bool = False


class HedgeRouter:
    """Ranks authors by their weight in a Bayesian mixture; the nearest goes first where weights are close.

    The last slot sometimes tries the author that has not drafted for longest, unless not even `TRIAL_TOKENS`
    perfect tokens would make it the leader. One that then predicts better than the leader keeps the slot; a trial
    that finds nothing doubles the time to the next one. When the leader's likelihood collapses, the subject has
    changed: evidence starts anew, the prompt counts less, and all slots but the first try everyone again. With a
    single slot a trial costs a used round, so trials are rarer in proportion to the leader's likelihood.
    """

    name = "hedge"

    def __init__(self) -> None:
        self._authors: dict[int, _RankedAuthor] = {}
        self._mixture = Mixture()
        self._likelihoods: deque[Mapping[int, float]] = deque(maxlen=MEMORY_TOKENS)
        self._watch = LeaderWatch()
        self._prompt_weight = 1.0
        self._trial_rounds = MIN_TRIAL_ROUNDS
        self._rounds_since_trial = 0

    def join(self, author: int, facts: DrafterFacts) -> None:
        silent_rounds = max((1, *(known.silent_rounds for known in self._authors.values())))
        if known := self._authors.get(author):
            known.facts, known.silent_rounds = facts, silent_rounds
        else:
            self._authors[author] = _RankedAuthor(facts, silent_rounds)
        self._rebuild()

    def leave(self, author: int) -> None:
        self._mixture.leave(author)
        self._authors.pop(author, None)

    def weights(self) -> dict[int, float]:
        """Weight of every author; with that of the stand-in they sum to 1."""
        weights = self._mixture.weights()
        weights.pop(STAND_IN, None)
        return weights

    def pick(self, count: int) -> tuple[int, ...]:
        """Up to `count` authors that should draft next, the best first."""
        ranked = self._ranked()
        proven, tried = self._split(ranked, count)
        rest = [author for author in ranked if author not in proven and author not in tried]
        return tuple((proven + tried + rest)[: max(0, count)])

    def trials(self, count: int) -> tuple[int, ...]:
        """Those of `pick` that are there to be tried, not for their weight."""
        return tuple(self._split(self._ranked(), count)[1])

    def learn(self, round_: Round) -> None:
        ranked = self._ranked()
        if not ranked:
            return
        leader = ranked[0]
        for likelihoods in round_.likelihoods:
            stand_in = self._watch.collapsed_likelihood
            if len(round_.authors) == 1 and stand_in is not None:
                scored: Mapping[int, float] = {**likelihoods, STAND_IN: stand_in}
            else:
                scored = likelihoods
            self._mixture.observe(scored)
            self._likelihoods.append(scored)
            if leader in likelihoods:
                self._watch.note(likelihoods[leader])
        self._pace_trials(leader, round_)
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
        """Of the ranked authors those that keep a slot, and those that are tried in the others."""
        # After a collapse only the prompt speaks for the unproven: they take no slot from a proven author.
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
        """The promising, then the one that has not drafted for longest."""
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

    def _pace_trials(self, leader: int, round_: Round) -> None:
        """Note who drafted and who is promising, and when the next trial is due."""
        on_trial = [
            author
            for author, known in self._authors.items()
            if author in round_.authors and author != leader and (known.is_promising or known.silent_rounds)
        ]
        for author, known in self._authors.items():
            known.is_promising = author in on_trial and self._gain_nats(author, leader, round_) > 0.0
        if any(known.is_promising for known in self._authors.values()) or self._ranked()[0] != leader:
            self._trial_rounds = MIN_TRIAL_ROUNDS
        elif on_trial:
            self._trial_rounds = min(2 * self._trial_rounds, MAX_TRIAL_ROUNDS)
        self._rounds_since_trial = 0 if on_trial else self._rounds_since_trial + 1
        for author, known in self._authors.items():
            has_drafted = author in round_.authors
            known.silent_rounds = 0 if has_drafted else known.silent_rounds + 1
            known.is_unproven = known.is_unproven and not has_drafted

    def _gain_nats(self, author: int, leader: int, round_: Round) -> float:
        """Nats by which an author predicted better than the leader did there, or usually does."""
        usual = self._watch.collapsed_likelihood if leader not in round_.authors else None
        gain_nats = 0.0
        for likelihoods in round_.likelihoods:
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
        """A mixture that saw the last tokens with everyone; one added later would be all evidence ahead."""
        self._mixture = Mixture()
        nlls = {author: known.facts.prompt_nll for author, known in self._authors.items()}
        for author, nll in {**nlls, STAND_IN: max(nlls.values(), default=0.0)}.items():
            self._mixture.join(author, prompt_nll=self._prompt_weight * nll)
        for likelihoods in self._likelihoods:
            self._mixture.observe(likelihoods)
