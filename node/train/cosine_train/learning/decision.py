"""The decisions of a drafter that learns: when to learn, which weights go live, and when they go back."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Final

from cosine_protocol.records import MAX_EXPERTISE
from cosine_train.learning.home import state_file

NEW_TOKENS: Final = 2000
"""New tokens that start a round: about ten to twenty answers."""
HELD_OUT_TOKENS: Final = 200
"""Minimum for measuring: with fewer the error of a share is above 3.5 %, more than the usual gain of a round."""
ERRORS_DOWN: Final = 3.0
"""Standard errors by which live acceptance must have fallen; by chance that happens once in 700 comparisons."""
LIVE_TOKENS: Final = 500
"""Additional tokens after which live acceptance is checked again, so that checks are few."""
FIRST_PAUSE_S: Final = 5.0
"""Pause before a child that died is restarted; it doubles each time."""
LONGEST_PAUSE_S: Final = 3600.0
"""Maximum pause: a child that always dies costs one start an hour."""

NAME: Final = "state.json"


@dataclass(frozen=True, slots=True)
class Acceptance:
    """First choices that equalled the target's token: `right` of `tokens`."""

    right: int = 0
    tokens: int = 0

    @property
    def share(self) -> float:
        return self.right / self.tokens if self.tokens else 0.0

    def __add__(self, other: "Acceptance") -> "Acceptance":
        return Acceptance(self.right + other.right, self.tokens + other.tokens)

    def __sub__(self, before: "Acceptance") -> "Acceptance":
        return Acceptance(self.right - before.right, self.tokens - before.tokens)


def standard_error(before: Acceptance, after: Acceptance) -> float:
    """Return the standard error of the difference of two shares of independent draws; infinite without any.

    Both shares are pooled, which is exact where they are equal. Tokens of one text are not independent, but both
    versions are measured along the same texts, which more than compensates.
    """
    if not before.tokens or not after.tokens:
        return math.inf
    pooled = (before.right + after.right) / (before.tokens + after.tokens)
    return math.sqrt(pooled * (1 - pooled) * (1 / before.tokens + 1 / after.tokens))


def is_due(*, new_tokens: int, held_out_tokens: int) -> bool:
    """Return True if there are enough tokens for training and for measuring."""
    return new_tokens >= NEW_TOKENS and held_out_tokens >= HELD_OUT_TOKENS


def goes_live(*, before: Acceptance, after: Acceptance) -> bool:
    """Return True if held-out acceptance rose by more than its error."""
    return after.share - before.share > standard_error(before, after)


def keeps_expertise(
    announced: Sequence[str], *, before: Mapping[str, float], after: Mapping[str, float], factor: float
) -> bool:
    """Return True if the negative log-likelihood of each announced domain grew by at most `factor`."""
    return all(after.get(domain, math.inf) <= factor * before[domain] for domain in announced if domain in before)


def is_suspect(*, before: Acceptance, since: Acceptance) -> bool:
    """Return True if live acceptance is significantly lower than before the switch."""
    if since.tokens < LIVE_TOKENS:
        return False
    return before.share - since.share > ERRORS_DOWN * standard_error(before, since)


def goes_back(*, earlier: Acceptance, live: Acceptance) -> bool:
    """Return True if the earlier version was right more often along the same streams, or there are none."""
    return not live.tokens or earlier.right > live.right


def pause_s(deaths: int) -> float:
    """Return the pause before a child is restarted that has died `deaths` times in a row."""
    return min(FIRST_PAUSE_S * 2.0 ** min(deaths - 1, 32), LONGEST_PAUSE_S)


def refreshed_expertise(announced: Sequence[str], nll: Mapping[str, float], *, factor: float) -> tuple[str, ...]:
    """Return the domains to announce: those of the volunteer, and those with similarly likely texts.

    `nll` is the mean negative log-likelihood by domain; a domain is added if its value is at most `factor` times
    the highest of an announced one. If none of these was measured, no domain is added.
    """
    own = [nll[domain] for domain in announced if domain in nll]
    if not own:
        return tuple(announced)
    near = [domain for domain, value in sorted(nll.items(), key=lambda one: one[1]) if value <= factor * max(own)]
    return tuple(dict.fromkeys((*announced, *near)))[:MAX_EXPERTISE]


@dataclass(slots=True)
class LearningState:
    """The state of a learner between runs, besides its streams and versions.

    `begun` is the number of the last version begun, `seen` that of the last stream used. `before` and `after` are
    held-out acceptance in the last round that went live, empty after a rollback. `earlier` is the version that
    served before the live one, with its added domains, `switched_at` the newest stream at the switch, `live_before`
    the earlier version's acceptance in all requests. If live acceptance falls below `expected`, that value or the
    one at the last comparison that the live version passed, the two versions are compared.
    """

    rounds: int = 0
    rollbacks: int = 0
    begun: int = 0
    seen: int = 0
    earlier: int = 0
    earlier_expertise: tuple[str, ...] = ()
    switched_at: int = 0
    before: Acceptance = field(default_factory=Acceptance)
    after: Acceptance = field(default_factory=Acceptance)
    live_before: Acceptance = field(default_factory=Acceptance)
    expected: Acceptance = field(default_factory=Acceptance)

    @classmethod
    def read(cls, folder: Path) -> "LearningState":
        """Read the state in a folder; missing or damaged fields have their initial values."""
        state = cls()
        for name, value in state_file(folder, NAME).read().items():
            match getattr(state, name, None), value:
                case int(), int() if value >= 0:
                    setattr(state, name, value)
                case tuple(), list(names):
                    setattr(state, name, tuple(map(str, names)))
                case Acceptance(), {"right": int(right), "tokens": int(tokens)} if 0 <= right <= tokens:
                    setattr(state, name, Acceptance(right, tokens))
        return state

    def write(self, folder: Path) -> None:
        state_file(folder, NAME).write(asdict(self))
