"""The rule by which audit verdicts convict a verifier, with bounds on its errors about honest ones. Pure.

Honest verifiers of one numerics compute equal scores up to rounding. An author is accused of differences that
rounding does not explain (compare Token-DiFR, arXiv 2511.20621):

- Near ties. Of n positions about n times `flip_rate` may differ; more than the random maximum accuse.

- Wide differences. Near-tie margins are about twice the largest movement of a margin in some thousand positions. If
movements had an exponential tail, one of `WIDE` times that margin, four times the largest of 3,456, would occur
once in 3456**4, or 10**14, positions. So a single wide difference accuses.

- Filters. If top-k, top-p or min-p just excludes a token for one verifier and not for the other, choices differ
widely, in up to `filter_flip_rate` of the positions.

Log-probabilities move like margins: one that is off by more than `WIDE` near-tie margins accuses, and so does a
mean that is off by more than `most_drift`. Between two numerics the rounding of both is added, and the effect of
weights quantised at load; log-probabilities are not judged then. A conviction takes two accusing voices
(`cosine_p2p.trust.voices`), and more than the clearing ones; with more clearing voices a stream has passed.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType
from typing import Final

from cosine_p2p.trust.voices import Poll
from cosine_protocol.audit import AuditVerdict
from cosine_protocol.numerics import GROUPED, LLAMA, QUANTISED, arithmetic_of, held_type_of, stored_type_of
from cosine_protocol.request import Request, Sampling


@dataclass(frozen=True, slots=True)
class Rounding:
    """The differences by rounding between two honest verifiers with the same numerics."""

    near_tie: float  # The margin below which rounding may decide between two scores: twice the largest movement.
    flip_rate: float  # The share of positions at which rounding may change the choice.
    filter_flip_rate: float  # The share at which a filter may keep a token for only one of them.


ROUNDING: Final[Mapping[str, Rounding]] = MappingProxyType(
    {
        "float32": Rounding(1e-4, 1e-4, 1e-6),
        "bfloat16": Rounding(1.25, 0.03, 0.008),
        "float16": Rounding(0.04, 0.003, 0.001),
    }
)
"""By the data type of arithmetic. When texts were fed token by token and in pieces of 5, of 16 and whole, margins
of SmolLM2 135M moved by 0.625 in bfloat16, and 27 of 2,049 positions differed, at margins up to 0.5; those of the
embedded target by 0.125, and in float16 by 0.0205, where 4 of 3,456 differed, at margins up to 0.004. Rates: twice
the measured ones; 0 of 40,000 in float32. With filters 14 of 10,000 were measured for the embedded target in
bfloat16 with top-k 20 and min-p 0.05, and 1 of 2,000 in float16."""
LLAMA_ROUNDING: Final[Mapping[str, Rounding]] = MappingProxyType(
    {
        "F32": Rounding(1e-4, 1e-4, 1e-6),
        "F16": Rounding(0.02, 0.003, 0.001),
        "BF16": Rounding(0.02, 0.015, 0.004),
        "Q8_0": Rounding(0.3, 0.005, 0.002),
    }
)
"""llama.cpp's, by the type of a file's weights. Margins moved by 0.009 in F16, 0.14 in Q8_0 and 1e-5 in F32 when
texts of the embedded target were decoded alone and in token trees with other requests, 944 positions of each.
Rates: in Q8_0 six times the measured 2 of 2,500 at temperature 1, with filters two and a half times; 0 of 10,000 in
F16 and F32."""
LLAMA_FEW_BITS: Final = Rounding(1.0, 0.02, 0.004)
"""llama.cpp's with fewer bits: margins moved by 0.5 in SmolLM2 135M in Q4_1; of 468 positions nine differed, at
margins up to 0.25. Rates: above these nine, and three times the measured 17 of 2,500 with filters."""


GROUPED_ROUNDING: Final = Rounding(3.0, 0.07, 0.014)
"""That of products whose inputs are rounded to eight bits. Margins moved by 1.55 in SmolLM2 135M in Q4_1 when the
last bit of its embedding was changed at random; of 5,436 positions 174 differed, at margins up to 0.9. With filters
in proportion to llama.cpp's. On one kind of processor, all bits are equal."""
HELD_ROUNDING: Final[Mapping[str, Rounding]] = MappingProxyType({"float16": ROUNDING["float16"]})
"""By the type of weights rounded at load; others count as few bits. SmolLM2's in Q4_1, held in float16 and judged
in float32, chose differently at 4 of 8,000 positions."""


def rounding_of(numerics: str) -> Rounding:
    """The rounding of numerics, such as `bfloat16/int8` or `gguf:Q4_1+llama.cpp`; default: float32's."""
    arithmetic = arithmetic_of(numerics)
    if arithmetic == LLAMA:
        return LLAMA_ROUNDING.get(stored_type_of(numerics) or "", LLAMA_FEW_BITS)
    if arithmetic == "float32" and held_type_of(numerics) in GROUPED:
        return GROUPED_ROUNDING
    return ROUNDING.get(arithmetic, ROUNDING["float32"])


def is_near_tie(margin: float, *, sampling: Sampling, near_tie: float) -> bool:
    """True if rounding may decide at this margin; a temperature below 1 scales scores and their errors."""
    return margin * min(1.0, sampling.temperature or 1.0) < near_tie


WIDE: Final = 2.0  # In near-tie margins; see above.
FALSE_ALARM: Final = 1e-6  # The probability that the audit of an honest stream accuses.
IMPOSSIBLE: Final = 12.0  # Standard deviations below a mean of 144 or more: a probability below 1e-35.


class AuditState(StrEnum):
    """The state or the result of a stream's audit; the result of several parts is the one listed last."""

    OFF = "off"
    NOT_DRAWN = "not drawn"  # Only a share of the streams is audited.
    UNSIGNED = "unsigned"  # Its verifier signed nothing that could be audited.
    UNDER_WAY = "under way"
    PASSED = "passed"
    NO_AUDITOR = "no auditor"  # No other verifier of the target and numerics is known and allowed.
    UNANSWERED = "unanswered"  # No auditor had time or could be reached.
    SUSPECTED = "suspected"  # One voice accuses, and there is no second auditor.
    DISPUTED = "disputed"  # One voice accuses and another clears: either may lie.
    CONVICTED = "convicted"


def rounding_between(one: str, other: str) -> Rounding:
    """The differences by rounding between two numerics: the sum of their deviations from the exact scores."""
    if one == other:
        return rounding_of(one)
    explained = [rounding_of(one), rounding_of(other)]
    held = {held_type_of(numerics) for numerics in (one, other)}
    if len(held) > 1:
        explained += [HELD_ROUNDING.get(kind, LLAMA_FEW_BITS) for kind in held if kind]
    return Rounding(
        sum(each.near_tie for each in explained),
        sum(each.flip_rate for each in explained),
        sum(each.filter_flip_rate for each in explained),
    )


def accuses(verdict: AuditVerdict, request: Request, *, numerics: str | None = None) -> bool:
    """True if a verdict has more differences than rounding explains; `numerics` are the auditor's."""
    sampling, positions = request.sampling, verdict.tokens - verdict.first
    rounding = rounding_between(request.numerics, numerics or request.numerics)
    wide_gap = WIDE * rounding.near_tie
    wide = sum(not is_near_tie(one.gap, sampling=sampling, near_tie=wide_gap) for one in verdict.findings)
    has_filter = not sampling.is_greedy and (sampling.top_k > 0 or sampling.top_p < 1 or sampling.min_p > 0)
    filtered = rounding.filter_flip_rate * positions if has_filter else 0.0
    explained = filtered + rounding.flip_rate * positions
    if numerics in (None, request.numerics) or QUANTISED not in f"{numerics}{request.numerics}":
        widest, mean = verdict.widest_gap or 0.0, verdict.mean_gap or 0.0
        if widest > wide_gap or abs(mean) > most_drift(verdict, request, near_tie=rounding.near_tie):
            return True
    return wide > most_by_chance(filtered) or verdict.near_ties + verdict.different > most_by_chance(explained)


def most_drift(verdict: AuditVerdict, request: Request, *, near_tie: float) -> float:
    """The maximum mean error of an honest verifier's log-probabilities in nats.

    They moved with a standard deviation of at most a tenth of the near-tie margin, and by a fiftieth of it on
    average in texts of 170 tokens. So this is ten standard deviations of a mean.
    """
    asked = request.logprobs
    of_prompt = len(request.prompt) - 1 if asked is not None and asked.of_prompt and not verdict.first else 0
    told = of_prompt + verdict.tokens - verdict.first
    return near_tie / math.sqrt(min(told, DRIFT_TOKENS))


DRIFT_TOKENS: Final = 4096  # An error of the mean of a 64th of a margin, 0.004 in bfloat16, is always allowed.


def state_of(poll: Poll) -> AuditState:
    if not poll.accusing and not poll.clearing:
        return AuditState.UNANSWERED
    if poll.accusing < poll.clearing:
        return AuditState.PASSED
    if poll.accusing >= 2 and poll.accusing > poll.clearing:
        return AuditState.CONVICTED
    return AuditState.DISPUTED if poll.clearing else AuditState.SUSPECTED


def is_decided(poll: Poll, *, left: int) -> bool:
    """True if no other judge has to be asked: none accuses, or the `left` others cannot change the result."""
    if not poll.accusing:
        return poll.clearing > 0
    return poll.clearing > poll.accusing + left or (poll.accusing >= 2 and poll.accusing > poll.clearing + left)


def most_by_chance(mean: float) -> int:
    """The number of events that a Poisson distribution exceeds with a probability of at most `FALSE_ALARM`."""
    if mean <= 0:
        return 0
    # The probability of fewer events is below a float's precision, and that of none would underflow.
    count = max(0, math.floor(mean - IMPOSSIBLE * math.sqrt(mean)))
    chance = math.exp(count * math.log(mean) - mean - math.lgamma(count + 1))
    tail = 1.0 - chance if count else -math.expm1(-mean)
    while tail > FALSE_ALARM:
        count += 1
        chance *= mean / count
        tail -= chance
    return count
