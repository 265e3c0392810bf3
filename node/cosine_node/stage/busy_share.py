"""The share of the time that a device was at work lately. Pure."""

from collections import deque
from typing import Final

WINDOW_S: Final = 30.0
"""A choice: as long as a few requests; a record is renewed when its load has changed."""


class BusyShare:
    """Notes passes, of one device and so never two at once. Times never go back."""

    def __init__(self, *, now_s: float) -> None:
        self._began_s = now_s
        self._passes: deque[tuple[float, float]] = deque()
        self.total_s = 0.0

    def note(self, *, began_s: float, ended_s: float) -> None:
        """Take a finished pass into account."""
        self._passes.append((began_s, ended_s))
        self.total_s += ended_s - began_s
        self._forget(ended_s)

    def share(self, now_s: float) -> float:
        """The share of the last `WINDOW_S` seconds, or of those since the start, 0..1."""
        self._forget(now_s)
        window_s = min(WINDOW_S, now_s - self._began_s)
        if window_s <= 0.0:
            return 0.0
        busy_s = sum(ended_s - max(began_s, now_s - window_s) for began_s, ended_s in self._passes)
        return min(1.0, busy_s / window_s)

    def _forget(self, now_s: float) -> None:
        while self._passes and self._passes[0][1] <= now_s - WINDOW_S:
            self._passes.popleft()
