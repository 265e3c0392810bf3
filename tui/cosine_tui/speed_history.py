"""The speed of a request from its beginning to now, in bounded memory."""

from typing import Final

from cosine_tui.snapshot import Speeds

FIRST_INTERVAL_S: Final = 0.5
"""A choice: several passes of most verifiers, so that a single one does not make the curve jump."""
MAX_INTERVALS: Final = 256
"""Bounds memory: more than most terminals have columns for the curve."""


class SpeedHistory:
    """A growing count of tokens, read off at equal intervals; these double whenever there are too many of them.

    Times come from the caller and never go back.
    """

    def __init__(self, *, began_s: float, interval_s: float = FIRST_INTERVAL_S, limit: int = MAX_INTERVALS) -> None:
        self._began_s = began_s
        self._interval_s = interval_s
        self._limit = limit
        self._counts: list[float] = [0.0]
        self._noted: tuple[float, float] = (began_s, 0.0)

    def note(self, tokens: float, now_s: float) -> None:
        """Add the count as it is now; between two counts it is taken to have grown evenly."""
        before_s, before = self._noted
        self._noted = (now_s, tokens)
        while (at_s := self._began_s + len(self._counts) * self._interval_s) <= now_s:
            share = (at_s - before_s) / (now_s - before_s) if now_s > before_s else 1.0
            self._counts.append(before + share * (tokens - before))
            if len(self._counts) > self._limit + 1:
                self._counts = self._counts[::2]
                self._interval_s *= 2

    @property
    def speeds(self) -> Speeds:
        """Tokens a second in every interval that is over."""
        pairs = zip(self._counts, self._counts[1:], strict=False)
        return Speeds(self._interval_s, tuple((after - before) / self._interval_s for before, after in pairs))
