"""The rule by which verdicts of audits convict a verifier, and how seldom it is wrong about an honest one. Pure.

Honest verifiers of one numerics compute equal scores up to rounding. An author is accused of what rounding does not
explain (compare Token-DiFR, arXiv 2511.20621):

- Near ties. Of n positions about n times `flip_rate` may differ; more than come by chance accuse.

- Nothing wide. Near-tie margins are about twice the most that a margin was seen to move in some thousand positions.
If movements had an exponential tail, one of `WIDE` times that margin, four times the most in 3,456, would come once
in 3456**4, or 10**14, positions. So a single wide difference accuses.

- Filters. Where top-k, top-p or min-p rules a token out for one verifier and just not for the other, choices differ
widely: `filter_flip_rate` of the positions may.

Log-probabilities move as margins do: one that is off by more than `WIDE` near-tie margins accuses, and so does a
mean that is off by more than `most_drift`. Between two numerics the rounding of both counts, with what weights
quantised at load change; log-probabilities are not judged then. A conviction takes two voices that accuse
(`cosine_p2p.trust.voices`), and more of them than disagree; where more disagree, a stream has passed.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType
from typing import Final

from cosine_p2p.trust.voices import Poll
from cosine_protocol.messages import AuditVerdict
from cosine_protocol.numerics import LLAMA, QUANTISED, arithmetic_of, held_type_of, stored_type_of
from cosine_protocol.request import Request, Sampling


@dataclass(frozen=True, slots=True)
class Rounding:
    """What rounding explains where two honest verifiers compute with the same numerics."""

    near_tie: float  # The margin below which it may decide between two scores: twice the most one moved.
    flip_rate: float  # The share of positions at which it may change the choice.
    filter_flip_rate: float  # The share at which a filter may keep a token for one and not the other.


ROUNDING: Final[Mapping[str, Rounding]] = MappingProxyType(
    {
        "float32": Rounding(1e-4, 1e-4, 1e-6),
        "bfloat16": Rounding(0.25, 0.015, 0.004),
        "float16": Rounding(0.04, 0.003, 0.001),
    }
)
"""By the data type of arithmetic. Margins moved by 0.125 and 0.0205 in 16 bits when texts of the embedded target
were fed token by token and in pieces of 5, of 16 and whole: of 3,456 positions 18 and 4 differed, at margins up to
0.092 and 0.004. Rates: more than twice the 61 of 10,000 in bfloat16 at temperature 1; in float32 one choice, above
the none of 40,000. With filters above the 14 of 10,000 in bfloat16 with top-k 20 and min-p 0.05, and one of 2,000
in float16."""
LLAMA_ROUNDING: Final[Mapping[str, Rounding]] = MappingProxyType(
    {
        "F32": Rounding(1e-4, 1e-4, 1e-6),
        "F16": Rounding(0.02, 0.003, 0.001),
        "BF16": Rounding(0.02, 0.015, 0.004),
        "Q8_0": Rounding(0.3, 0.005, 0.002),
    }
)
"""Of llama.cpp, by the type of a file's weights. Margins moved by 0.009 in F16, 0.14 in Q8_0 and 1e-5 in F32 where
texts of the embedded target were decoded alone and in token trees beside others, 944 positions of each. Rates: in
Q8_0 six times the two of 2,500 at temperature 1, with filters two and a half times; none of 10,000 in F16 and
F32."""
LLAMA_FEW_BITS: Final = Rounding(1.0, 0.02, 0.004)
"""The same for fewer bits: margins moved by 0.5 in SmolLM2 135M in Q4_1, of 468 positions of which nine differed,
at margins up to 0.25. Rates: above these nine, and three times the 17 of 2,500 with filters."""


HELD_ROUNDING: Final[Mapping[str, Rounding]] = MappingProxyType({"float16": ROUNDING["float16"]})
"""Of weights rounded at load, by what they are held in; other kinds count as few bits. SmolLM2's in Q4_1, held in
float16 and judged in float32, chose otherwise at 4 of 8,000 positions."""


def rounding_of(numerics: str) -> Rounding:
    """By an engine's numerics, as `bfloat16/int8` or `gguf:Q4_1+llama.cpp`; float32's where unknown."""
    arithmetic = arithmetic_of(numerics)
    if arithmetic == LLAMA:
        return LLAMA_ROUNDING.get(stored_type_of(numerics) or "", LLAMA_FEW_BITS)
    return ROUNDING.get(arithmetic, ROUNDING["float32"])


def is_near_tie(margin: float, *, sampling: Sampling, near_tie: float) -> bool:
    """True if rounding may decide at this margin; a temperature below 1 spreads scores and their errors."""
    return margin * min(1.0, sampling.temperature or 1.0) < near_tie


WIDE: Final = 2.0  # Near-tie margins; the reason is above.
FALSE_ALARM: Final = 1e-6  # That an honest stream's audit accuses: one in ten million at 5 % audited.
IMPOSSIBLE: Final = 12.0  # Standard deviations below a mean of 144 or more: a chance below 1e-35.


class AuditState(StrEnum):
    """How far the audit of a stream has come, or what it has found; of several parts the one named last counts."""

    OFF = "off"
    NOT_DRAWN = "not drawn"  # Only a share of the streams is audited.
    UNSIGNED = "unsigned"  # Its verifier signed nothing that could be audited.
    UNDER_WAY = "under way"
    PASSED = "passed"
    NO_AUDITOR = "no auditor"  # No other verifier of the target and numerics is known and allowed.
    UNANSWERED = "unanswered"  # No auditor had time for it, or could be reached.
    SUSPECTED = "suspected"  # One voice accuses, and there is no second one to ask.
    DISPUTED = "disputed"  # One accuses and another one does not: either may lie.
    CONVICTED = "convicted"


def rounding_between(one: str, other: str) -> Rounding:
    """What rounding explains between two numerics: each differs from the exact scores by its own."""
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
    """True if a verdict has more differences than rounding explains; `numerics` are its auditor's own."""
    sampling, positions = request.sampling, verdict.tokens - verdict.first
    rounding = rounding_between(request.numerics, numerics or request.numerics)
    wide_gap = WIDE * rounding.near_tie
    wide = sum(not is_near_tie(one.gap, sampling=sampling, near_tie=wide_gap) for one in verdict.findings)
    has_filter = not sampling.is_greedy and (sampling.top_k > 0 or sampling.top_p < 1 or sampling.min_p > 0)
    filtered = rounding.filter_flip_rate * positions if has_filter else 0.0
    explained = filtered + rounding.flip_rate * positions
    is_comparable = numerics in (None, request.numerics) or QUANTISED not in f"{numerics}{request.numerics}"
    if is_comparable and misstates(verdict, request, near_tie=rounding.near_tie):
        return True
    return wide > most_by_chance(filtered) or verdict.near_ties + verdict.different > most_by_chance(explained)


def misstates(verdict: AuditVerdict, request: Request, *, near_tie: float) -> bool:
    if verdict.widest_gap is not None and verdict.widest_gap > WIDE * near_tie:
        return True
    return verdict.mean_gap is not None and abs(verdict.mean_gap) > most_drift(verdict, request, near_tie=near_tie)


def most_drift(verdict: AuditVerdict, request: Request, *, near_tie: float) -> float:
    """Nats by which an honest verifier's log-probabilities may be off on average.

    They moved with a standard deviation of a tenth of the near-tie margin or less, and by a fiftieth of it on
    average in texts of 170 tokens. So this is ten standard deviations of a mean.
    """
    asked = request.logprobs
    of_prompt = len(request.prompt) - 1 if asked is not None and asked.of_prompt and not verdict.first else 0
    told = of_prompt + verdict.tokens - verdict.first
    return near_tie / math.sqrt(min(told, DRIFT_TOKENS))


DRIFT_TOKENS: Final = 4096  # The mean may always be off by a 64th of a margin, 0.004 in bfloat16.


def state_of(poll: Poll) -> AuditState:
    """What judges have found together."""
    if not poll.accusing and not poll.clearing:
        return AuditState.UNANSWERED
    if poll.accusing < poll.clearing:
        return AuditState.PASSED
    if poll.accusing >= 2 and poll.accusing > poll.clearing:
        return AuditState.CONVICTED
    return AuditState.DISPUTED if poll.clearing else AuditState.SUSPECTED


def is_decided(poll: Poll, *, left: int) -> bool:
    """True if nobody else need be asked: nobody accuses, or the `left` others cannot change the result."""
    if not poll.accusing:
        return poll.clearing > 0
    return poll.clearing > poll.accusing + left or (poll.accusing >= 2 and poll.accusing > poll.clearing + left)


def most_by_chance(mean: float) -> int:
    """The most events of a Poisson distribution that are not exceeded but with the chance `FALSE_ALARM`."""
    if mean <= 0:
        return 0
    # Fewer events are impossible in a float, and so would be the chance of none where many are expected.
    count = max(0, math.floor(mean - IMPOSSIBLE * math.sqrt(mean)))
    chance = math.exp(count * math.log(mean) - mean - math.lgamma(count + 1))
    tail = 1.0 - chance if count else -math.expm1(-mean)
    while tail > FALSE_ALARM:
        count += 1
        chance *= mean / count
        tail -= chance
    return count
