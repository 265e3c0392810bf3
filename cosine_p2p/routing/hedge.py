"""Ours: full information instead of a bandit (HedgeSpec, papers 5.9; DESIGN section 7).

Whoever drafted from the committed prefix is scored on the committed text, used or not, so a slot beside the used
one is enough to learn about an author. Evidence about authors that do not draft grows stale; how much is spent on
hearing them again follows from how well the present leader predicts.
"""

import math
from collections import deque
from collections.abc import Mapping
from typing import Final

from cosine_p2p.routing.base import DrafterFacts, Round
from cosine_p2p.speculation.mixture import MEMORY_TOKENS, MIN_LIKELIHOOD, Mixture

CLOSE_WEIGHTS: Final = 0.9
TRIAL_TOKENS: Final = 8
MIN_TRIAL_ROUNDS: Final = 2
MAX_TRIAL_ROUNDS: Final = 32
ALONE_FACTOR: Final = 60
USUAL_TOKENS: Final = 32
SLACK_NATS: Final = 0.5
ALARM_NATS: Final = 10.0
BAD_DAY_NATS: Final = 1.0
STALE_PROMPT: Final = 0.3
"""What is left of the differences in the likelihood of the prompt once the text has left its subject."""
STAND_IN: Final = -1
"""Number in the mixture of an imagined author that predicts as the leader does on a bad day.

It speaks where a single author is active: the mixture alone compares those that speak, so it would learn nothing.
"""


def nats_of(likelihood: float) -> float:
    """Negative log-likelihood, bounded as in the mixture."""
    return -math.log(max(MIN_LIKELIHOOD, likelihood))


class LeaderWatch:
    """How well the leader predicts the text, and whether that collapsed (one-sided CUSUM, Page 1954).

    A collapse is a loss of `ALARM_NATS` against the leader's usual log-likelihood less `SLACK_NATS` a token.
    """

    def __init__(self) -> None:
        self._tokens = 0
        self._usual_nats = 0.0
        self._missing_nats = 0.0

    @property
    def surprise_nats(self) -> float:
        """Mean negative log-likelihood of the committed tokens at which the leader spoke, lately."""
        return self._usual_nats

    @property
    def bad_day(self) -> float | None:
        """The probability that the leader gives a token on a bad day, None while too few were seen."""
        return math.exp(-self._usual_nats - BAD_DAY_NATS) if self._tokens >= TRIAL_TOKENS else None

    @property
    def has_collapsed(self) -> bool:
        return self._missing_nats > ALARM_NATS

    def rearm(self) -> None:
        """Begin to watch for the next collapse."""
        self._missing_nats = 0.0

    def note(self, likelihood: float) -> None:
        """Take in the probability that the leader gave a committed token."""
        nats = nats_of(likelihood)
        if self._tokens >= TRIAL_TOKENS:
            self._missing_nats = max(0.0, self._missing_nats + nats - self._usual_nats - SLACK_NATS)
        self._tokens += 1
        self._usual_nats += (nats - self._usual_nats) / min(self._tokens, USUAL_TOKENS)


class HedgeRouter:
    """Ranks authors by their weight in a Bayesian mixture; the nearest goes first where weights are close.

    The last slot now and then hears the author not heard for longest, unless that is hopeless: not even
    `TRIAL_TOKENS` perfectly predicted tokens would make it the leader. Who then predicts better than the leader
    keeps the slot; a trial that finds nothing doubles the time to the next one. When the leader's likelihood of the
    text collapses, the request has changed its subject: evidence starts anew, the prompt counts less, and all slots
    but the first hear everyone again at once. With a single slot a trial costs a used round, so trials are rarer
    in proportion to the leader's likelihood of the text. The constants were chosen on the traces' split "tune".
    Without `has_prior` the likelihood of the prompt is ignored.
    """

    name = "hedge"

    def __init__(self, *, has_prior: bool = True) -> None:
        self._facts: dict[int, DrafterFacts] = {}
        self._mixture = Mixture()
        self._spoken: deque[Mapping[int, float]] = deque(maxlen=MEMORY_TOKENS)
        self._watch = LeaderWatch()
        self._silent_rounds: dict[int, int] = {}
        self._unheard: set[int] = set()
        self._promising: set[int] = set()
        self._prompt_share = float(has_prior)
        self._trial_rounds = MIN_TRIAL_ROUNDS
        self._rounds_since_trial = 0

    def join(self, author: int, facts: DrafterFacts) -> None:
        self._facts[author] = facts
        self._silent_rounds[author] = max((1, *self._silent_rounds.values()))
        self._rebuild()

    def leave(self, author: int) -> None:
        self._mixture.leave(author)
        self._facts.pop(author, None)
        self._silent_rounds.pop(author, None)
        self._unheard.discard(author)
        self._promising.discard(author)

    def weights(self) -> dict[int, float]:
        """Present weight of every author; with that of the stand-in they sum to 1."""
        weights = self._mixture.weights()
        weights.pop(STAND_IN, None)
        return weights

    def pick(self, count: int) -> tuple[int, ...]:
        ranked = self._ranked()
        kept, heard = self._kept_and_heard(ranked, count)
        rest = [author for author in ranked if author not in kept and author not in heard]
        return tuple((kept + heard + rest)[: max(0, count)])

    def trials(self, count: int) -> tuple[int, ...]:
        """Those of the authors that `pick` would give which are there to be heard, not for their weight."""
        return tuple(self._kept_and_heard(self._ranked(), count)[1])

    def _kept_and_heard(self, ranked: list[int], count: int) -> tuple[list[int], list[int]]:
        # After a collapse only words speak for those not heard yet: they take no slot from who was heard.
        proven = [author for author in ranked if author not in self._unheard] or ranked
        kept = proven[: max(0, count - self._trial_slots(count))]
        return kept, self._to_hear(ranked, kept)[: max(0, count - len(kept))]

    def learn(self, round_: Round) -> None:
        ranked = self._ranked()
        if not ranked:
            return
        for likelihoods in round_.spoken:
            self._observe(likelihoods, is_alone=len(round_.drafted) == 1)
            if ranked[0] in likelihoods:
                self._watch.note(likelihoods[ranked[0]])
        self._pace_trials(ranked[0], round_)
        if self._watch.has_collapsed:
            self._start_anew()

    def why(self, author: int) -> str:
        silent = self._silent_rounds[author]
        heard = "just heard" if not silent else f"not heard for {silent} rounds"
        return f"weight {self.weights()[author]:.3f}, {heard}"

    def _observe(self, likelihoods: Mapping[int, float], *, is_alone: bool) -> None:
        bad_day = self._watch.bad_day
        scored = {**likelihoods, STAND_IN: bad_day} if is_alone and bad_day is not None else likelihoods
        self._mixture.observe(scored)
        self._spoken.append(scored)

    def _ranked(self) -> list[int]:
        weights = self.weights()
        ranked = sorted(weights, key=lambda author: (-weights[author], author))
        close = [author for author in ranked if weights[author] >= CLOSE_WEIGHTS * weights[ranked[0]]]
        return sorted(close, key=self._first_token_s) + ranked[len(close) :]

    def _first_token_s(self, author: int) -> float:
        return self._facts[author].rtt_s + self._facts[author].token_s

    def _trial_slots(self, count: int) -> int:
        if self._unheard:
            return max(1, count - 1)
        if self._promising:
            return 1
        cost = ALONE_FACTOR * math.exp(-self._watch.surprise_nats) if count == 1 else 1.0
        return int(self._rounds_since_trial + 1 >= self._trial_rounds * cost)

    def _to_hear(self, ranked: list[int], kept: list[int]) -> list[int]:
        """Authors worth a trial, the one not heard for longest first."""
        weights = self.weights()
        in_reach = weights[ranked[0]] * math.exp(-TRIAL_TOKENS * self._watch.surprise_nats) if ranked else 0.0
        hopeful = [
            author
            for author in ranked
            if author not in kept
            and (author in self._promising or self._silent_rounds[author])
            and (author in self._unheard or weights[author] >= in_reach)
        ]
        return sorted(hopeful, key=lambda author: (author not in self._promising, -self._silent_rounds[author]))

    def _pace_trials(self, leader: int, round_: Round) -> None:
        heard = round_.drafted.keys()
        on_trial = [a for a in heard if a != leader and (a in self._promising or self._silent_rounds.get(a, 0))]
        self._promising = {author for author in on_trial if self._gain_nats(author, leader, round_) > 0.0}
        if self._promising or self._ranked()[0] != leader:
            self._trial_rounds = MIN_TRIAL_ROUNDS
        elif on_trial:
            self._trial_rounds = min(2 * self._trial_rounds, MAX_TRIAL_ROUNDS)
        self._rounds_since_trial = 0 if on_trial else self._rounds_since_trial + 1
        for author in self._silent_rounds:
            self._silent_rounds[author] = 0 if author in heard else self._silent_rounds[author] + 1
        self._unheard -= heard

    def _gain_nats(self, author: int, leader: int, round_: Round) -> float:
        """How much better than the leader an author predicted what both spoke about, or than the leader does."""
        gain_nats = 0.0
        for likelihoods in round_.spoken:
            usual = self._watch.bad_day if leader not in round_.drafted else None
            against = likelihoods.get(leader, usual)
            if author in likelihoods and against is not None:
                gain_nats += nats_of(against) - nats_of(likelihoods[author])
        return gain_nats

    def _start_anew(self) -> None:
        self._spoken.clear()
        self._watch.rearm()
        self._prompt_share = min(self._prompt_share, STALE_PROMPT)
        self._unheard = {author for author, rounds in self._silent_rounds.items() if rounds}
        self._trial_rounds = MIN_TRIAL_ROUNDS
        self._rebuild()

    def _rebuild(self) -> None:
        """A mixture that saw the last tokens with everyone present who is now.

        Whoever joins late sleeps through what was committed before; merely added it would be all evidence ahead.
        """
        self._mixture = Mixture()
        nlls = {author: facts.prompt_nll for author, facts in self._facts.items()}
        for author, nll in {**nlls, STAND_IN: max(nlls.values(), default=0.0)}.items():
            self._mixture.join(author, prompt_nll=self._prompt_share * nll)
        for likelihoods in self._spoken:
            self._mixture.observe(likelihoods)
