"""The margins below which rounding may decide between the two best scores, by data type."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from cosine_protocol.request import Sampling

NEAR_TIES: Final[Mapping[str, float]] = MappingProxyType({"float32": 1e-4, "bfloat16": 0.25, "float16": 0.04})
"""In 16 bits about twice the most that a margin moved (0.125 and 0.0205) when texts of the embedded target were fed
token by token and in pieces of 5, of 16 and whole: 3,456 positions, of which 18 and 4 differed, at margins up to
0.092 and 0.004."""


def near_tie_of(numerics: str) -> float:
    """The margin of an engine's numerics, such as `bfloat16/int8`; float32's for those of no known data type."""
    dtype = numerics.rpartition("+")[2].split("/")[0]
    return NEAR_TIES.get(dtype, NEAR_TIES["float32"])


def is_near_tie(margin: float, *, sampling: Sampling, near_tie: float) -> bool:
    """True if rounding may decide at a position with that margin.

    A temperature below 1 spreads scores, and their errors with them.
    """
    return margin * min(1.0, sampling.temperature or 1.0) < near_tie
