"""The decisions of a drafter that learns: when to learn, which weights go live, and when they go back.

`LearningState` is what a learner remembers between runs besides its streams and versions.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Final

from cosine_p2p.storage.state_file import StateFile
from cosine_protocol.limits import MAX_EXPERTISE

NEW_TOKENS: Final = 2000
"""New tokens that start a round: some ten to twenty answers."""
HELD_OUT_TOKENS: Final = 200
"""With fewer the error of a share is above 3.5 %, more than a round usually gains."""
ERRORS_DOWN: Final = 3.0
"""Standard errors by which live acceptance must have fallen; chance does it once in 700 looks."""
LIVE_TOKENS: Final = 500
"""Live acceptance is looked at each time as many tokens more are there, so that looks are few."""
FIRST_PAUSE_S: Final = 5.0
"""The pause before a child that died is started again; it doubles each time."""
LONGEST_PAUSE_S: Final = 3600.0
"""A child that always dies costs a start an hour."""

NAME: Final = "state.json"
MAX_BYTES: Final = 1 << 16
"""Far above a dozen numbers."""


@dataclass(frozen=True, slots=True)
class Acceptance:
    """First choices that were the target's token: `right` of `tokens`."""

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
    """Of the difference of two shares, as of independent draws; infinite without any.

    Both shares are pooled, which is exact where they are equal. Streams of one text are not independent, but both
    versions are measured along the same ones, which more than makes up for it.
    """
    if not before.tokens or not after.tokens:
        return math.inf
    pooled = (before.right + after.right) / (before.tokens + after.tokens)
    return math.sqrt(pooled * (1 - pooled) * (1 / before.tokens + 1 / after.tokens))


def is_due(*, new_tokens: int, held_out_tokens: int) -> bool:
    """True if there is enough to learn from, and enough to measure by."""
    return new_tokens >= NEW_TOKENS and held_out_tokens >= HELD_OUT_TOKENS


def goes_live(*, before: Acceptance, after: Acceptance) -> bool:
    """True if held-out acceptance rose by more than its error."""
    return after.share - before.share > standard_error(before, after)


def keeps_expertise(
    announced: Sequence[str], *, before: Mapping[str, float], after: Mapping[str, float], factor: float
) -> bool:
    """True if the announced domains are the drafter's own still: their texts are nearly as likely to it as before.

    `before` and `after` are negative log-likelihoods by domain; what tells own domains from others is `factor`.
    """
    return all(after.get(domain, math.inf) <= factor * before[domain] for domain in announced if domain in before)


def is_suspect(*, before: Acceptance, since: Acceptance) -> bool:
    """True if live acceptance is lower than before the switch by more than chance explains."""
    if since.tokens < LIVE_TOKENS:
        return False
    return before.share - since.share > ERRORS_DOWN * standard_error(before, since)


def goes_back(*, earlier: Acceptance, live: Acceptance) -> bool:
    """True if the earlier version was right more often along the same streams, or there are none to compare on."""
    return not live.tokens or earlier.right > live.right


def pause_s(deaths: int) -> float:
    """The pause before a child that has died `deaths` times in a row is started again."""
    return min(FIRST_PAUSE_S * 2.0 ** min(deaths - 1, 32), LONGEST_PAUSE_S)


def refreshed_expertise(announced: Sequence[str], nll: Mapping[str, float], *, factor: float) -> tuple[str, ...]:
    """The domains to announce: those of the volunteer, and those whose texts are nearly as likely to the drafter.

    `nll` is the mean negative log-likelihood by domain; a domain is added if its own is at most `factor` times the
    highest on an announced one. Where none of these was measured nothing is added.
    """
    own = [nll[domain] for domain in announced if domain in nll]
    if not own:
        return tuple(announced)
    near = [domain for domain, value in sorted(nll.items(), key=lambda one: one[1]) if value <= factor * max(own)]
    return tuple(dict.fromkeys((*announced, *near)))[:MAX_EXPERTISE]


@dataclass(slots=True)
class LearningState:
    """`begun` is the number of the last version that was begun, `seen` that of the last stream learned from.

    `before` and `after` are held-out acceptance in the last round that went live, empty after going back. `earlier`
    is the version that served before the live one, with the domains that it added, `switched_at` the newest stream
    at the switch, `live_before` what all requests accepted of it. The live version is compared with the earlier one
    where they accept less than `expected`: that, or what they accepted when it was last found to be no worse.
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
        """That in a folder; as at first, for what is missing or damaged."""
        state = cls()
        for name, value in _file(folder).read().items():
            match getattr(state, name, None), value:
                case int(), int() if value >= 0:
                    setattr(state, name, value)
                case tuple(), list(names):
                    setattr(state, name, tuple(map(str, names)))
                case Acceptance(), {"right": int(right), "tokens": int(tokens)} if 0 <= right <= tokens:
                    setattr(state, name, Acceptance(right, tokens))
        return state

    def write(self, folder: Path) -> None:
        fields: dict[str, Any] = asdict(self)
        _file(folder).write(fields)


@cache
def _file(folder: Path) -> StateFile:
    return StateFile(NAME, max_bytes=MAX_BYTES, file=folder / NAME)
