"""Calibration: the acceptance rate that a draft probability has had, so that exaggeration corrects itself."""

from typing import Final

BINS: Final = 10
"""A choice: a tenth is as fine as some hundred outcomes of one request can tell apart."""
PRIOR_STRENGTH: Final = 8.0
"""A choice: after so many outcomes in a bin they count as much as the author's word."""


class Calibration:
    """Acceptance rate by draft probability, apart for an author's first choice at a prefix and for the others.

    A draft probability p in a bin with n outcomes of which h were accepted counts as (h + s e) / (n + s), s =
    `PRIOR_STRENGTH`. The prior e is p, or for a first choice p to the power `first_power`.
    """

    def __init__(self, *, first_power: float = 1.0) -> None:
        self._first_power = first_power
        self._hits = [0.0] * (2 * BINS)
        self._outcomes = [0.0] * (2 * BINS)

    def __call__(self, probability: float, *, is_first: bool) -> float:
        index = _bin_of(probability, is_first)
        prior = probability**self._first_power if is_first else probability
        return (self._hits[index] + PRIOR_STRENGTH * prior) / (self._outcomes[index] + PRIOR_STRENGTH)

    def observe(self, probability: float, *, is_first: bool, hit: bool) -> None:
        """Record whether a drafted token was the one committed."""
        index = _bin_of(probability, is_first)
        self._outcomes[index] += 1.0
        self._hits[index] += hit


def _bin_of(probability: float, is_first: bool) -> int:
    return min(int(max(probability, 0.0) * BINS), BINS - 1) + BINS * is_first
