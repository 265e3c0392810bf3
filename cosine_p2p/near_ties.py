"""The margins below which rounding may decide between the two best scores, by data type."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from cosine_protocol.request import Sampling

NEAR_TIES: Final[Mapping[str, float]] = MappingProxyType({"float32": 1e-4, "bfloat16": 0.25, "float16": 0.04})
"""In 16 bits about twice the most that a margin moved (0.125 and 0.0205) when texts of the embedded target were fed
token by token and in pieces of 5, of 16 and whole: 3,456 positions, of which 18 and 4 differed, at margins up to
0.092 and 0.004."""


LLAMA_NEAR_TIES: Final[Mapping[str, float]] = MappingProxyType(
    {"F32": 1e-4, "F16": 0.02, "BF16": 0.02, "Q8_0": 0.3}
)
"""The same of llama.cpp, by the type of a file's weights: about twice the most that a margin moved, 0.009 in F16
and 0.14 in Q8_0, where texts of the embedded target were decoded alone and in token trees beside others, 944
positions of each. In F32 none moved by more than 1e-5."""
LLAMA_FEW_BITS: Final = 1.0
"""The same for fewer bits, where rounded activations fall on other steps: 0.5 in SmolLM2 135M in Q4_1, of 468
positions of which nine differed, at margins up to 0.25."""


def near_tie_of(numerics: str) -> float:
    """The margin of an engine's numerics, such as `bfloat16/int8` or `gguf:Q4_1+llama.cpp`."""
    return _of(numerics, NEAR_TIES, LLAMA_NEAR_TIES, few_bits=LLAMA_FEW_BITS)


FLIP_RATES: Final[Mapping[str, float]] = MappingProxyType({"float32": 1e-4, "bfloat16": 0.015, "float16": 0.003})
"""The share of positions at which two honest verifiers may choose differently: more than twice the 61 of 10,000 in
bfloat16 at temperature 1; in float32 a choice, above the none of 40,000 (tests/node/verifier/measure_audits.py)."""
LLAMA_FLIP_RATES: Final[Mapping[str, float]] = MappingProxyType(
    {"F32": 1e-4, "F16": 0.003, "BF16": 0.015, "Q8_0": 0.005}
)
"""In Q8_0 six times the two of 2,500 at temperature 1; in F16 and F32 there were none in 10,000. BF16 as above."""
LLAMA_FEW_BITS_FLIP_RATE: Final = 0.02
"""Above the nine positions of 468, and three times the 17 of 2,500 in SmolLM2 with filters."""


FILTER_FLIP_RATES: Final[Mapping[str, float]] = MappingProxyType(
    {"float32": 1e-6, "bfloat16": 0.004, "float16": 0.001}
)
"""The share of positions at which a filter may keep a token for one of them and rule it out for the other: above
the 14 of 10,000 in bfloat16 with top-k 20 and min-p 0.05, and one of 2,000 in float16. float32, which rounds
65,536 times finer than bfloat16, had none in 10,000."""
LLAMA_FILTER_FLIP_RATES: Final[Mapping[str, float]] = MappingProxyType(
    {"F32": 1e-6, "F16": 0.001, "BF16": 0.004, "Q8_0": 0.002}
)
"""In Q8_0 two and a half times the two of 2,500; F16 and BF16 as above."""
LLAMA_FEW_BITS_FILTER_FLIP_RATE: Final = 0.004
"""More than twice the four of 2,500 in SmolLM2 in Q4_1."""


def flip_rate_of(numerics: str) -> float:
    """The share of positions at which rounding may change the choice, by an engine's numerics."""
    return _of(numerics, FLIP_RATES, LLAMA_FLIP_RATES, few_bits=LLAMA_FEW_BITS_FLIP_RATE)


def filter_flip_rate_of(numerics: str) -> float:
    """The share of positions at which rounding may change what a filter keeps."""
    return _of(numerics, FILTER_FLIP_RATES, LLAMA_FILTER_FLIP_RATES, few_bits=LLAMA_FEW_BITS_FILTER_FLIP_RATE)


def is_near_tie(margin: float, *, sampling: Sampling, near_tie: float) -> bool:
    """True if rounding may decide at a position with that margin between two scores.

    A temperature below 1 spreads scores, and their errors with them.
    """
    return margin * min(1.0, sampling.temperature or 1.0) < near_tie


def _of(numerics: str, types: Mapping[str, float], of_llama: Mapping[str, float], *, few_bits: float) -> float:
    """The value of the type that is computed with; float32's where that is not known."""
    weights, _, computed = numerics.removeprefix("gguf:").rpartition("+")
    if computed == "llama.cpp":
        return of_llama.get(weights, few_bits)
    return types.get(computed.split("/")[0], types["float32"])
