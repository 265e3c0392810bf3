"""The present cost curve of a device: the curve of the idle device, corrected by real passes.

Load does not slow all passes equally. If memory bandwidth is shared, a pass over one token takes twice as long and
one over eight hardly any longer; if the processor is shared, all take twice as long. The first passes do not show
which. Therefore half of the excess of a pass is attributed to its length and half to all lengths.

Relative to short passes, long ones never count as costlier than on the idle device: they run while drafters work,
and a wrong estimate would never be corrected. `cosine_p2p.strategy.speed_trial` measures the cost of drafters.
"""

from bisect import bisect_left
from math import inf
from typing import Final

from cosine_engine.curve import CostCurve, rising
from cosine_p2p.strategy.moving_average import moving_average

PASS_WEIGHT: Final = 0.05
"""Weight of the last pass, both for its length and for all: about ten passes count, less than a second."""
FORGOTTEN: Final = 0.002
"""Decay of a length's deviation per pass over another length, so that a load is forgotten after it has ended. With
five times as much, the cost of a length that every fifth pass has was 15 % off."""
MOST_SLOWER: Final = 2.0
"""Bounds the effect of one stalled pass on the averages to a tenth."""


class LearnedCurve:
    """A cost curve that follows the passes of a device. `curve` is the present one."""

    def __init__(self, measured: CostCurve) -> None:
        self._measured = measured
        self._slowness = 1.0
        self.curve = measured

    def note_pass(self, tokens: int, *, elapsed_s: float) -> None:
        if not (expected_s := self.curve.seconds(tokens)):
            return
        slower = PASS_WEIGHT * (min(elapsed_s / expected_s, MOST_SLOWER) - 1.0)
        self._slowness *= 1.0 + slower
        shares = self._shares(tokens)
        points, least = [], inf
        for index, ((length, seconds), (_, idle_s)) in enumerate(
            zip(self.curve.points, self._measured.points, strict=True)
        ):
            moved_s = seconds * (1.0 + slower)
            if share := shares.get(index):
                moved_s *= 1.0 + share * slower
            else:
                moved_s = moving_average(moved_s, self._slowness * idle_s, weight=FORGOTTEN)
            if moved_s > least * idle_s:
                moved_s = least * idle_s
            elif idle_s:
                least = moved_s / idle_s
            points.append((length, moved_s))
        self.curve = CostCurve(rising(points))

    def _shares(self, tokens: int) -> dict[int, float]:
        """The interpolation weights of the points next to a length, by index."""
        lengths = [length for length, _ in self._measured.points]
        right = min(bisect_left(lengths, tokens), len(lengths) - 1)
        if right == 0 or lengths[right] <= tokens:
            return {right: 1.0}
        part = (tokens - lengths[right - 1]) / (lengths[right] - lengths[right - 1])
        return {right - 1: 1.0 - part, right: part}
