"""How much better an engine's choice scores than a token that somebody else chose at its place. Pure."""

import math
from typing import Final

from cosine_node.engine.base import Choice
from cosine_protocol.limits import MAX_SCORE_GAP

CANDIDATES: Final = 8
"""Beyond so many tokens a gap need not be exact, for it is wide."""


def gap_of(choice: Choice, committed: int) -> float:
    """The score of a choice less that of another token, or less than that where it is no candidate.

    A token that the sampler rules out is as far away as can be.
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
