"""The plan of a verifier's own drafter: the depth and the requests that bring the most tokens a second. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from cosine_engine.curve import CostCurve
from cosine_p2p.strategy.moving_average import moving_average

MAX_LEVELS: Final = 8
"""Bounds how long the target waits: at an acceptance rate of 0.7 four more levels would bring 0.1 tokens; the last
four bring 0.4."""
LEAST_WIDTH: Final = 4
MOST_WIDTH: Final = 16
WIDE_PASS: Final = 1.25
"""Nodes that a pass of the drafter feeds for each request: those that lengthen it by at most a quarter. Eight
instead of four, for 1.2 times the time, gave a speedup of 1.69 instead of 1.59 (SmolLM2 with a draft head)."""


@dataclass(frozen=True, slots=True)
class HomeRates:
    """Acceptance rates of a home drafter: of the first token after a pass, and of each after an accepted one."""

    first: float
    next: float

    def expected(self, levels: int) -> float:
        """The expected number of accepted tokens of `levels` levels."""
        return self.first * sum(self.next**level for level in range(levels))

    def learn(self, *, accepted: int, levels: int, weight: float) -> "HomeRates":
        """The rates after a pass that accepted `accepted` tokens of `levels` levels."""
        first = moving_average(self.first, float(accepted > 0), weight=weight)
        following = self.next
        for level in range(1, min(levels, accepted + 1)):
            following = moving_average(following, float(accepted > level), weight=weight)
        return HomeRates(first, following)


@dataclass(frozen=True, slots=True, kw_only=True)
class HomeProspect:
    """A request that the home drafter could draft for.

    `covered` is the expected number of accepted tokens of its present tree, `rates` the drafter's rates,
    `unread_tokens` the text that the drafter has not read, `passes_left` the passes of the target that profit from
    reading it, `max_levels` the number of drafted tokens that the request has room for.
    """

    covered: float
    rates: HomeRates
    unread_tokens: int
    passes_left: float
    max_levels: int

    def expected(self, levels: int) -> float:
        """The expected accepted tokens with `levels` levels of home drafts."""
        return max(self.rates.expected(levels), self.covered)


def width_of(drafter_curve: CostCurve) -> int:
    """The number of nodes that a pass of a drafter with this curve feeds for each request."""
    return drafter_curve.tokens_within(WIDE_PASS, least=LEAST_WIDTH, most=MOST_WIDTH)


@dataclass(frozen=True, slots=True)
class HomePlan:
    """The levels to draft, 0 for none, the indices of the requests that join, and the total tokens a second."""

    levels: int = 0
    joining: tuple[int, ...] = ()
    tokens_per_s: float = 0.0


def plan_home_drafts(
    prospects: Sequence[HomeProspect], *, target_curve: CostCurve, drafter_curve: CostCurve, width: int
) -> HomePlan:
    """The plan with the most tokens a second over all requests of the next pass.

    The target waits for a local drafter (SpecInfer with a local small model, Miao et al. 2024), so a request joins
    only if home drafts promise more than its present tree. The first pass of the drafter feeds one node for each
    request, the others `width`. The time to read text is spread over the passes that profit from it.
    """
    plain_tokens = sum(1.0 + prospect.covered for prospect in prospects)
    best = HomePlan(tokens_per_s=plain_tokens / target_curve.seconds(max(1, len(prospects))))
    for levels in range(1, MAX_LEVELS + 1):
        joining = [
            index
            for index, prospect in enumerate(prospects)
            if levels <= prospect.max_levels and prospect.expected(levels) > prospect.covered
        ]
        if not joining:
            continue
        joined = [prospects[index] for index in joining]
        tokens = plain_tokens + sum(prospect.expected(levels) - prospect.covered for prospect in joined)
        reading_s = sum(
            (drafter_curve.seconds(1 + prospect.unread_tokens) - drafter_curve.seconds(1)) / prospect.passes_left
            for prospect in joined
        )
        first_s = drafter_curve.seconds(len(joined)) + max(0.0, reading_s)
        drafting_s = first_s + (levels - 1) * drafter_curve.seconds(width * len(joined))
        pass_s = target_curve.seconds(len(prospects) + levels * len(joined))
        rate = tokens / (pass_s + drafting_s)
        if rate > best.tokens_per_s:
            best = HomePlan(levels, tuple(joining), rate)
    return best
