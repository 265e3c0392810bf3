"""Calibrated confidence: what an author's claims have been worth, so that exaggeration corrects itself."""

from typing import Final

BINS: Final = 10
PRIOR_STRENGTH: Final = 8.0


class Calibration:
    """Hit rate by claimed confidence, apart for an author's first choice at a prefix and for the others.

    A claim c in a bin with n outcomes of which h hit is worth (h + s e) / (n + s), s = `PRIOR_STRENGTH`. The prior
    e is c, or for a first choice c to the power `first_power`.
    """

    def __init__(self, *, first_power: float = 1.0) -> None:
        self._first_power = first_power
        self._hits = [0.0] * (2 * BINS)
        self._outcomes = [0.0] * (2 * BINS)

    def __call__(self, claim: float, *, is_first: bool) -> float:
        index = _bin_of(claim, is_first)
        prior = claim**self._first_power if is_first else claim
        return (self._hits[index] + PRIOR_STRENGTH * prior) / (self._outcomes[index] + PRIOR_STRENGTH)

    def observe(self, claim: float, *, is_first: bool, hit: bool) -> None:
        """Record whether a claimed token was the one committed."""
        index = _bin_of(claim, is_first)
        self._outcomes[index] += 1.0
        self._hits[index] += hit


def _bin_of(claim: float, is_first: bool) -> int:
    return min(int(max(claim, 0.0) * BINS), BINS - 1) + BINS * is_first
