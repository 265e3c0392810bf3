"""The pass times of one request, as its verifiers report them. Pure."""

from collections import deque
from statistics import median
from typing import Final

from cosine_protocol.verify import PassStats

LATEST_PASSES: Final = 64  # Four seconds of passes of 60 ms.


class ReportedPasses:
    """The latest times of passes after the prompt's, with and without draft nodes."""

    def __init__(self) -> None:
        self._plain_us: deque[int] = deque(maxlen=LATEST_PASSES)
        self._drafted_us: deque[int] = deque(maxlen=LATEST_PASSES)

    def note(self, stats: PassStats, *, is_first: bool) -> None:
        """Note a pass; the first pass of a verifier also reads the prompt and is ignored."""
        if not is_first and stats.pass_us:
            (self._drafted_us if stats.nodes else self._plain_us).append(stats.pass_us)

    @property
    def plain_s(self) -> float | None:
        """Median seconds of passes without draft nodes, else the minimum of all; None before any."""
        if self._plain_us:
            return median(self._plain_us) / 1e6
        return min(self._drafted_us) / 1e6 if self._drafted_us else None

    @property
    def has_plain(self) -> bool:
        """True if `plain_s` was measured, otherwise it is an upper bound."""
        return bool(self._plain_us)
