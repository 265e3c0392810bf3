"""The exponential moving average of all that is measured again and again."""


def moving_average(known: float | None, sample: float, *, weight: float) -> float:
    """The average after one more sample, which counts with `weight`; the first sample is its own average."""
    return sample if known is None else known + weight * (sample - known)
