"""Intervals of what was measured over prompts: another choice of prompts would have given other figures."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import ArrayLike, NDArray

RESAMPLES: Final = 2000
"""Enough for two digits of the bounds of an interval."""
INTERVAL_PERCENT: Final = (2.5, 97.5)
"""The bootstrap percentile interval (Efron 1979) that 95 % are told by."""

Statistic = Callable[[NDArray[np.float64]], NDArray[np.float64]]
"""Figures of samples: of an array of shape (samples, prompts, ...) one for each sample."""


def bootstrap_interval(values: ArrayLike, statistic: Statistic, *, seed: int) -> list[float]:
    """The low and the high end of a figure's interval, with the values of a prompt in each row."""
    known = np.asarray(values, dtype=np.float64)
    drawn = known[np.random.default_rng(seed).integers(0, len(known), (RESAMPLES, len(known)))]
    low, high = np.percentile(statistic(drawn), INTERVAL_PERCENT)
    return [float(low), float(high)]


def ratio_of_sums(pairs: NDArray[np.float64]) -> NDArray[np.float64]:
    """The first of each pair over the second, both summed over prompts; the shape is (samples, prompts, 2)."""
    totals = pairs.sum(axis=1)
    ratios: NDArray[np.float64] = totals[:, 0] / totals[:, 1]
    return ratios


def medians(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """The median over prompts; the shape is (samples, prompts)."""
    found: NDArray[np.float64] = np.median(values, axis=1)
    return found


def ratio_and_interval(over: Sequence[float], under: Sequence[float], *, seed: int) -> dict[str, Any]:
    """The `ratio` of two sums over the same prompts, and its `interval`."""
    pairs = np.array([over, under]).T
    return {
        "ratio": float(pairs[:, 0].sum() / pairs[:, 1].sum()),
        "interval": bootstrap_interval(pairs, ratio_of_sums, seed=seed),
    }


def speedup_fields(seconds: Mapping[int, float], plain: Mapping[int, float], *, seed: int) -> dict[str, Any]:
    """Fields of a row: the speedup over plain decoding, its interval, and the least speedup of a prompt.

    Both hold the seconds of prompts by number; `plain` may hold more prompts.
    """
    numbers = sorted(seconds)
    own, others = [seconds[number] for number in numbers], [plain[number] for number in numbers]
    found = ratio_and_interval(others, own, seed=seed)
    return {
        "speedup": found["ratio"],
        "interval": found["interval"],
        "worst_prompt_speedup": min(other / one for one, other in zip(own, others, strict=True)),
    }
