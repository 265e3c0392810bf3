"""The exponential moving average of repeated measurements."""


def moving_average(known: float | None, sample: float, *, weight: float) -> float:
    """Return the average after one more sample of this weight; the first sample is the average."""
    return sample if known is None else known + weight * (sample - known)
