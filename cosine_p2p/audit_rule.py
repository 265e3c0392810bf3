"""The rule by which verdicts of audits convict a verifier, and how seldom it is wrong about an honest one. Pure.

Two honest verifiers of one numerics compute the same scores up to rounding. Rounding explains three things, and an
author is accused of what goes beyond them (compare Token-DiFR, arXiv 2511.20621, which scores margins alike):

- Near ties. Of n positions about n times `flip_rate_of` may differ; more than come by chance accuse.
- Nothing wide. Near-tie margins are about twice the most that a margin was seen to move in some thousand positions.
  Had movements the tail of an exponential distribution, one of `WIDE` times that margin, four times the most in
  3,456, would come once in 3456**4, or 10**14, positions. So a single wide difference accuses.
- Unless a filter stands in between. Where top-k, top-p or min-p rules a token out for one verifier and just not for
  the other, their choices differ widely: `filter_flip_rate_of` the positions may.

One auditor's word may be a lie: a conviction takes two accusers, and more of them than auditors that disagree.
"""

import math
from collections.abc import Sequence
from enum import StrEnum
from typing import Final

from cosine_p2p.near_ties import filter_flip_rate_of, flip_rate_of, is_near_tie, near_tie_of
from cosine_protocol.audit_messages import AuditVerdict
from cosine_protocol.request import Request, Sampling

WIDE: Final = 2.0
"""Near-tie margins; the reason is above."""
FALSE_ALARM: Final = 1e-6
"""A choice: the chance that an audit of an honest stream accuses, once in ten million streams at 5 % audited."""
IMPOSSIBLE: Final = 12.0
"""Standard deviations below a mean of 144 or more: the chance of fewer events is below 1e-35."""


class AuditState(StrEnum):
    """How far the audit of a stream has come, or what it has found; of several parts the one named last counts."""

    OFF = "off"
    NOT_DRAWN = "not drawn"
    """Only a share of the streams is audited."""
    UNSIGNED = "unsigned"
    """Its verifier signed nothing that could be audited."""
    UNDER_WAY = "under way"
    PASSED = "passed"
    NO_AUDITOR = "no auditor"
    """No other verifier of the target and numerics is known, or none that the user allows."""
    UNANSWERED = "unanswered"
    """No auditor had time for it, or could be reached."""
    SUSPECTED = "suspected"
    """One auditor accuses, and there is no second one to ask."""
    DISPUTED = "disputed"
    """One accuses and another one does not: either may lie."""
    CONVICTED = "convicted"


def accuses(verdict: AuditVerdict, request: Request) -> bool:
    """True if a verdict has more differences than rounding explains."""
    sampling, positions = request.sampling, verdict.tokens - verdict.first
    wide_gap = WIDE * near_tie_of(request.numerics)
    wide = [
        finding
        for finding in verdict.findings
        if not is_near_tie(finding.gap, sampling=sampling, near_tie=wide_gap)
    ]
    filtered = filter_flip_rate_of(request.numerics) * positions if _filters(sampling) else 0.0
    explained = filtered + flip_rate_of(request.numerics) * positions
    return len(wide) > most_by_chance(filtered) or verdict.near_ties + verdict.different > most_by_chance(explained)


def state_of(accusations: Sequence[bool]) -> AuditState:
    """What auditors have found together: `accusations` says of each whether it accuses."""
    accusers = sum(accusations)
    if not accusations:
        return AuditState.UNANSWERED
    if not accusers:
        return AuditState.PASSED
    if accusers >= 2 and accusers > len(accusations) - accusers:
        return AuditState.CONVICTED
    return AuditState.SUSPECTED if len(accusations) == 1 else AuditState.DISPUTED


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


def _filters(sampling: Sampling) -> bool:
    return not sampling.is_greedy and (sampling.top_k > 0 or sampling.top_p < 1 or sampling.min_p > 0)
