"""The distance of an engine's choice to a token chosen elsewhere at its place. Pure."""

import math
from typing import Final

from cosine_engine.base import Choice
from cosine_protocol.audit import MAX_SCORE_GAP

CANDIDATES: Final = 8
"""Candidates that are compared; a gap beyond them is large and need not be exact."""


def gap_of(choice: Choice, committed: int) -> float:
    """Return the score of a choice minus that of another token, or a lower bound if this is no candidate.

    For a token that the sampler rules out it is infinite.
    """
    chances = dict(choice.candidates)
    if committed in chances:
        rival = chances[committed]
    elif len(chances) < CANDIDATES:
        return MAX_SCORE_GAP
    else:
        rival = min(chances.values())
    best = chances.get(choice.token, 1.0)
    return min(MAX_SCORE_GAP, max(choice.margin, math.log(best / rival))) if rival > 0 else MAX_SCORE_GAP
