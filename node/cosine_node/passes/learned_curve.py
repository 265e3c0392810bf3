"""What passes cost now: a device's curve, measured when it was idle, moved by the passes that it runs.

Load does not lengthen all passes alike. Where others read the same memory, a pass over one token takes twice as
long and one over eight, which computes more for what it reads, hardly any longer: then drafts pay that did not on
the idle machine. Where the processor is shared, all take twice as long. The first passes cannot tell which it is.

So what a pass took longer than expected is put down half to its length and half to all lengths. If only short ones
are run, long ones are expected to have become dearer, but by less; they are then tried where drafts would pay, and
what they really take corrects the curve.

Next to short ones, long passes are never taken to be dearer than on the idle machine. They are run while drafters
are at work, and short ones where nobody is: what seems to be their length is often the load, and who believed it
would never try them again. What drafters themselves cost is found by the clock (`cosine_p2p.strategy.speed_trial`).
"""

from bisect import bisect_left
from math import inf
from typing import Final

from cosine_node.engine.curve import CostCurve, rising
from cosine_p2p.strategy.moving_average import moving_average

PASS_WEIGHT: Final = 0.05
"""Of the last pass, in the cost of its length and in that of all: together about ten passes count, less than a
second of most devices."""
FORGOTTEN: Final = 0.002
"""Of what sets a length apart from the others, in a pass over another: most of it after five hundred, as many as
some answers take. Else a load that has ended would be believed in for as long as all passes have drafts. With five
times as much, the cost of a length that every fifth pass has was 15 % off."""
MOST_SLOWER: Final = 2.0
"""Bounds what one pass that stood still, a suspended machine's for example, does to the averages: a tenth."""


class LearnedCurve:
    """A cost curve that follows the passes of a device: `curve` is the one that holds now."""

    def __init__(self, measured: CostCurve) -> None:
        self._measured = measured
        self._slowness = 1.0
        self.curve = measured

    def note_pass(self, tokens: int, *, elapsed_s: float) -> None:
        """Take in how long a pass over so many tokens took."""
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
        """Of the points next to a length, by index, how much each of them says of it."""
        lengths = [length for length, _ in self._measured.points]
        right = min(bisect_left(lengths, tokens), len(lengths) - 1)
        if right == 0 or lengths[right] <= tokens:
            return {right: 1.0}
        part = (tokens - lengths[right - 1]) / (lengths[right] - lengths[right - 1])
        return {right - 1: 1.0 - part, right: part}
