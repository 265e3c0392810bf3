"""The number of passes that a verifier's own drafter takes before a pass of the target. Pure.

A drafter beside the verifier has no network in its way, but the target waits for it (SpecInfer with a local small
model, Miao et al. 2024). So it drafts only where drafts from elsewhere promise less than it does, and only as long
as a further pass of it brings more tokens a second.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from cosine_node.engine.curve import CostCurve
from cosine_p2p.speculation.moving_average import moving_average

MAX_LEVELS: Final = 8
"""A choice that bounds how long the target waits: at an acceptance rate of 0.7 a ninth token is right in 4 %."""
WIDTH: Final = 4
"""Nodes that a pass of the drafter feeds for each request: four cost what one does on the measured curves."""


@dataclass(frozen=True, slots=True)
class HomeRates:
    """Acceptance rates of a home drafter: of the first token after a pass, and of each that follows a right one.

    They differ, because a pass ends where a text is hard to guess, and what follows it is often as hard.
    """

    first: float
    next: float

    def expected(self, levels: int) -> float:
        """Tokens accepted of so many levels."""
        return self.first * sum(self.next**level for level in range(levels))

    def learn(self, *, accepted: int, levels: int, weight: float) -> "HomeRates":
        """The rates after a pass that accepted so many tokens of so many levels, at this weight for each token."""
        first = moving_average(self.first, float(accepted > 0), weight=weight)
        following = self.next
        for level in range(1, min(levels, accepted + 1)):
            following = moving_average(following, float(accepted > level), weight=weight)
        return HomeRates(first, following)


@dataclass(frozen=True, slots=True, kw_only=True)
class HomeProspect:
    """A request that could be drafted for at home.

    `covered` is the number of tokens that its tree as it stands is expected to bring, `rates` are those at which
    the drafter is right, `unread_tokens` the text that it has not read yet, `passes_left` the passes of the target
    that may use it once read, `max_levels` the drafted tokens that the request has room for.
    """

    covered: float
    rates: HomeRates
    unread_tokens: int
    passes_left: float
    max_levels: int

    def expected(self, levels: int) -> float:
        """Tokens that so many levels of the drafter's own bring, the best of its guesses and those there are."""
        return max(self.rates.expected(levels), self.covered)


@dataclass(frozen=True, slots=True)
class HomePlan:
    """The passes to take, and the requests, by index, that are in them."""

    levels: int = 0
    joining: tuple[int, ...] = ()


def plan_home_drafts(
    prospects: Sequence[HomeProspect], *, target_curve: CostCurve, drafter_curve: CostCurve, slowness: float = 1.0
) -> HomePlan:
    """The plan with the most tokens a second for all requests of the next pass together.

    `slowness` is how much longer the drafter's passes take than its curve says. A request joins where its own
    drafts promise more than what it has. The time to read text is spread over the passes that profit from it.
    """
    plain_tokens = sum(1.0 + prospect.covered for prospect in prospects)
    best, best_rate = HomePlan(), plain_tokens / target_curve.seconds(max(1, len(prospects)))
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
        drafting_s = first_s + (levels - 1) * drafter_curve.seconds(WIDTH * len(joined))
        pass_s = target_curve.seconds(len(prospects) + levels * len(joined))
        rate = tokens / (pass_s + slowness * drafting_s)
        if rate > best_rate:
            best, best_rate = HomePlan(levels, tuple(joining)), rate
    return best
