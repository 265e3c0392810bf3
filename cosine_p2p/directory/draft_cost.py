"""A judgement whether drafts pay at a verifier, by the costs of passes in its record. Pure."""

from typing import Final

SELDOM_PAYS: Final = 2500  # In thousandths: three drafts that are each right with probability 0.7 bring 1.5 tokens.
NEVER_PAYS: Final = 3500  # The same with probability 0.91.


def drafts_sentence(four_tokens_permille: int | None) -> str:
    """The reason why drafts do not pay at a verifier with this cost of four tokens; "" if they may."""
    if four_tokens_permille is None or four_tokens_permille < SELDOM_PAYS:
        return ""
    verdict = "drafts do not pay here" if four_tokens_permille >= NEVER_PAYS else "drafts hardly pay here"
    times = four_tokens_permille / 1000
    return f"{verdict}: a pass over 4 tokens takes {times:.1f} times as long as one over 1"
