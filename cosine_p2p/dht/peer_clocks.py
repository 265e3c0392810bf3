"""The error of this machine's clock, estimated by the median of peers' records, for warnings. Pure.

Times are Unix seconds of this machine's clock.
"""

import math
from statistics import median_low
from typing import Final

from cosine_p2p.storage.memory import Remembered
from cosine_protocol.fields import MAX_RECORD_SKEW_S

WARNED_S: Final = MAX_RECORD_SKEW_S / 2  # More than synchronised clocks differ, less than records tolerate.
KEEP_S: Final = 600.0  # Twice the lifetime of a record; then a corrected clock is no longer reported.
TELL_EVERY_S: Final = 3600.0  # Bounds the log, since peers can cause the problem.
MAX_SOURCES: Final = 256  # Bounds memory.


class PeerClocks:
    """Estimates of clocks by source: the owners of records, or the address ranges that sent them."""

    def __init__(self) -> None:
        # By source: the minimum and maximum seconds by which this clock is ahead of it.
        self._samples = Remembered[str, tuple[float, float]](MAX_SOURCES, forgotten_s=KEEP_S)
        self._told_s: dict[bool, float] = {}

    def note(self, source: str, *, issued_s: float, oldest_s: float, now_s: float) -> None:
        """Note a record that the source issued at `issued_s` of its clock, at most `oldest_s` ago."""
        most_s = now_s - issued_s
        self._samples.note(source, (most_s - oldest_s, most_s), now_s)

    def ahead_s(self, now_s: float) -> tuple[float, float] | None:
        """The minimum and maximum seconds by which this clock is ahead of the median source."""
        fresh = [bounds_s for _, bounds_s in self._samples.items(now_s)]
        if not fresh:
            return None
        return median_low(least_s for least_s, _ in fresh), -median_low(-most_s for _, most_s in fresh)

    def problem(self, now_s: float) -> str:
        """A sentence without full stop if the median source is far from this clock; else ""."""
        bounds_s = self.ahead_s(now_s)
        off_s = max(bounds_s[0], -bounds_s[1]) if bounds_s else 0.0
        if not bounds_s or off_s <= WARNED_S:
            return ""
        peers = len(self._samples.items(now_s))
        if peers == 1:
            found = f"this machine's clock and that of the only peer met differ by at least {span(off_s)}"
        else:
            side = "ahead of" if bounds_s[0] == off_s else "behind"
            found = f"this machine's clock is at least {span(off_s)} {side} those of {peers} peers"
        limit = f"peers whose clocks differ by more than {MAX_RECORD_SKEW_S:g} s do not find each other"
        return f"{found}, and {limit}; `sudo timedatectl set-ntp true` sets a clock"

    def news(self, now_s: float) -> str:
        """The problem once in `TELL_EVERY_S`, and once more when several peers confirm it."""
        problem, is_sure = self.problem(now_s), len(self._samples.items(now_s)) > 1
        if not problem or abs(now_s - self._told_s.get(is_sure, -math.inf)) < TELL_EVERY_S:
            return ""
        self._told_s[is_sure] = now_s
        return problem


def span(seconds: float) -> str:
    for size_s, name in ((86_400.0, "days"), (3600.0, "h"), (60.0, "min")):
        if seconds >= 2 * size_s:
            return f"{seconds / size_s:.0f} {name}"
    return f"{seconds:.0f} s"
