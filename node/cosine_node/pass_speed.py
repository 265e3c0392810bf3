"""The time of a pass that a node tells: measured at its start, then moved by its real passes. Pure."""

from collections import deque
from statistics import median
from typing import Final

from cosine_node.engine.curve import CostCurve

WINDOW_PASSES: Final = 256
"""A choice: some seconds of work on a fast device, half a minute on a slow one."""
MIN_PASSES: Final = 32
"""A choice: fewer say nothing, for the first passes of every shape take longer."""
MIN_CHANGE: Final = 0.2
"""A smaller part of what is told is no news: a client prefers no verifier for it."""
MIN_CHANGE_S: Final = 1e-4
"""A choice: less is lost in every link."""
MIN_INTERVAL_S: Final = 30.0
"""A choice: a record is stored by several nodes, each time."""


class PassSpeed:
    """Compares passes with a measured curve. `pass_s` is the time of a one-token pass to tell now."""

    def __init__(self, curve: CostCurve, *, now_s: float) -> None:
        self.pass_s = curve.seconds(1)
        self._curve = curve
        self._told_at_s = now_s
        self._ratios: deque[float] = deque(maxlen=WINDOW_PASSES)

    def note(self, *, tokens: int, elapsed_s: float) -> None:
        """Take a finished pass into account, if the curve was measured for as many tokens."""
        expected_s = self._curve.seconds(tokens)
        if expected_s and tokens <= self._curve.points[-1][0]:
            self._ratios.append(elapsed_s / expected_s)

    def forget(self) -> None:
        """Count only the passes from now on: those before were under another load."""
        self._ratios.clear()

    def refresh(self, now_s: float) -> bool:
        """Move `pass_s` to the median of the last passes if it is far from that; True if it has moved."""
        if len(self._ratios) < MIN_PASSES or now_s - self._told_at_s < MIN_INTERVAL_S:
            return False
        moved_s = self._curve.seconds(1) * median(self._ratios)
        if abs(moved_s - self.pass_s) < max(MIN_CHANGE * self.pass_s, MIN_CHANGE_S):
            return False
        self.pass_s, self._told_at_s = moved_s, now_s
        return True
