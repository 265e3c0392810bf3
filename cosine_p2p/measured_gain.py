"""A gain in speed as looks have measured it: its mean, and how far that may be wrong. Pure."""

import math
from dataclasses import dataclass
from typing import Final

MEMORY_LOOKS: Final = 8.0
"""A choice: older looks fade, since swarms change."""
USUAL_NOISE: Final = 0.25
"""A look's error before any was measured: runs of 1 to 8 accepted tokens, over a stretch."""
NOISE_LOOKS: Final = 1.0
"""A choice: looks that `USUAL_NOISE` counts for beside the measured ones, of which the first shows no spread."""


@dataclass(slots=True)
class Gain:
    """How much faster another way is than the present one, as a logarithm, with the weight of its looks."""

    looks: float = 0.0
    mean: float = 0.0
    square: float = 0.0

    def add(self, sample: float) -> None:
        """Take in one look."""
        self.looks = min(self.looks, MEMORY_LOOKS - 1.0) + 1.0
        change = sample - self.mean
        self.mean += change / self.looks
        self.square += (change * (sample - self.mean) - self.square) / self.looks

    @property
    def error(self) -> float:
        """Standard error of the mean."""
        known = NOISE_LOOKS + max(self.looks - 1.0, 0.0)
        variance = (NOISE_LOOKS * USUAL_NOISE**2 + self.looks * self.square) / known
        return math.sqrt(variance / max(self.looks, 1.0))


@dataclass(frozen=True, slots=True)
class MeasuredRatio:
    """Times as fast as the present way, with its standard error as a share."""

    ratio: float
    error: float
