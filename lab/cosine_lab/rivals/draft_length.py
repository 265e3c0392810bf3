"""The best draft length of synchronous chain speculation over a link."""

from collections.abc import Sequence
from typing import Final

DRAFT_LENGTHS: Final = tuple(range(1, 17))
"""A choice: longer drafts hardly gain where a round waits for all of them."""


def expected_tokens(*, acceptance: float, draft_tokens: int) -> float:
    """Tokens committed by one round: (1 - a^(g+1)) / (1 - a) (Leviathan et al. 2023, equation 1)."""
    if acceptance >= 1.0:
        return draft_tokens + 1.0
    return float((1.0 - acceptance ** (draft_tokens + 1)) / (1.0 - acceptance))


def best_draft_tokens(
    *,
    acceptance: float,
    draft_token_s: float,
    round_trips_s: float,
    verify_s: float,
    lengths: Sequence[int] = DRAFT_LENGTHS,
) -> int:
    """The g that maximises committed tokens per second when a round costs g drafts, the round trips and a pass."""
    return max(
        lengths,
        key=lambda g: (
            expected_tokens(acceptance=acceptance, draft_tokens=g) / (g * draft_token_s + round_trips_s + verify_s)
        ),
    )
