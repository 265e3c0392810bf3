"""How fast a count grew in the last few seconds."""

from collections import deque
from typing import Final

WINDOW_S: Final = 3.0


class Rate:
    """Samples of a growing count; times come from the caller and never go back."""

    def __init__(self, *, began_s: float, window_s: float = WINDOW_S) -> None:
        self._window_s = window_s
        self._samples: deque[tuple[float, float]] = deque([(began_s, 0.0)])

    def note(self, count: float, now_s: float) -> None:
        """The count is that high now."""
        self._samples.append((now_s, count))
        # The newest sample older than the window stays: it is where the window begins.
        while len(self._samples) > 2 and self._samples[1][0] <= now_s - self._window_s:
            self._samples.popleft()

    @property
    def per_s(self) -> float:
        """Growth a second over the window, 0 before there is any time to look back on."""
        (first_s, first), (last_s, last) = self._samples[0], self._samples[-1]
        return (last - first) / (last_s - first_s) if last_s > first_s else 0.0
