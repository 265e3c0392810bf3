"""No draft is lost on the way: what a drafter that is always right drafts in time is in the next pass.

The verifier never waits. So how much of a text drafts can serve follows from how many passes of the drafter fit
into one of the target, and from how far away it is: docs/benchmarks.md, "How much drafts can serve".
"""

from itertools import product

import pytest

from cosine_p2p.trust.mandates import Coordination
from tests.swarm.draft_ways import TOKENS, Case, shares_of
from tests.thoroughness import quick_first

COORDINATIONS = (Coordination.VERIFIER, Coordination.CLIENT)


def cases(ratios: tuple[float, ...]) -> list[Case]:
    return [
        Case(ratio=ratio, rtt_s=rtt_s, coordination=coordination)
        for rtt_s, ratio, coordination in product((0.004, 0.1, 0.0, 0.02), ratios, COORDINATIONS)
    ]


@pytest.mark.parametrize("case", quick_first(cases((10.0, 30.0)), 6, checked=8))
def test_where_a_pass_is_ten_of_the_drafters_nearly_every_position_is_offered(case: Case) -> None:
    shares = shares_of(case)
    assert shares.offered >= 0.95
    # The client counts about the same, whoever coordinates; it counts the first token and the last as well.
    assert shares.generation.offered >= 0.95 * TOKENS
    # All that came is taken, but for the one token of each pass that is the target's own.
    assert shares.lost == 0
    assert shares.taken >= 0.95 * (1.0 - 1.0 / case.ratio)


@pytest.mark.parametrize("case", quick_first(cases((1.0, 1.5, 2.0, 4.0)), 2, checked=8))
def test_below_that_drafts_are_late_and_none_is_lost(case: Case) -> None:
    shares = shares_of(case)
    assert shares.lost == 0
    # A pass takes no more than the drafter drafts while it lasts, and gives one token itself.
    assert shares.taken <= 1.0 - 1.0 / case.ratio + 0.02
