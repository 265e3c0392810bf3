"""Bootstrap intervals of figures measured over prompts."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import ArrayLike, NDArray

RESAMPLES: Final = 2000
"""Number of resamples: enough for two digits of an interval's bounds."""
INTERVAL_PERCENT: Final = (2.5, 97.5)
"""The 95 % bootstrap percentile interval (Efron 1979)."""

Statistic = Callable[[NDArray[np.float64]], NDArray[np.float64]]
"""Function from an array of shape (samples, prompts, ...) to one figure per sample."""


def bootstrap_interval(values: ArrayLike, statistic: Statistic, *, seed: int) -> list[float]:
    """Return the low and high end of a figure's interval. `values` has a row per prompt."""
    known = np.asarray(values, dtype=np.float64)
    drawn = known[np.random.default_rng(seed).integers(0, len(known), (RESAMPLES, len(known)))]
    low, high = np.percentile(statistic(drawn), INTERVAL_PERCENT)
    return [float(low), float(high)]


def ratio_of_sums(pairs: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the sum of first over the sum of second elements; `pairs` has the shape (samples, prompts, 2)."""
    totals = pairs.sum(axis=1)
    ratios: NDArray[np.float64] = totals[:, 0] / totals[:, 1]
    return ratios


def medians(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the median over prompts; `values` has the shape (samples, prompts)."""
    found: NDArray[np.float64] = np.median(values, axis=1)
    return found


def ratio_and_interval(over: Sequence[float], under: Sequence[float], *, seed: int) -> dict[str, Any]:
    """Return the `ratio` of two sums over the same prompts, and its `interval`."""
    pairs = np.array([over, under]).T
    return {
        "ratio": float(pairs[:, 0].sum() / pairs[:, 1].sum()),
        "interval": bootstrap_interval(pairs, ratio_of_sums, seed=seed),
    }


def speedup_fields(seconds: Mapping[int, float], plain: Mapping[int, float], *, seed: int) -> dict[str, Any]:
    """Return fields of a row: speedup over plain decoding, its interval, and the lowest speedup of a prompt.

    Both arguments are seconds by prompt number; `plain` may have more prompts.
    """
    numbers = sorted(seconds)
    own, others = [seconds[number] for number in numbers], [plain[number] for number in numbers]
    found = ratio_and_interval(others, own, seed=seed)
    return {
        "speedup": found["ratio"],
        "interval": found["interval"],
        "worst_prompt_speedup": min(other / one for one, other in zip(own, others, strict=True)),
    }
