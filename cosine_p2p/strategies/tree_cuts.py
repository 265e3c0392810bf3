"""How unlikely a path may be and still be sent, by whose link carries it. Pure.

What follows a token that nobody expected is there in time only if it was drafted before, below a path that seemed
unlikely then. Of such paths few are ever used, and all cost bytes.
"""

from dataclasses import dataclass
from typing import Final

CLIENT_MIN_PATH_PROBABILITY: Final = 0.005
"""Bounds bytes on the client's link: the verifier drops what is less likely
(`cosine_node.verifier.selection.MIN_PATH_PROBABILITY`)."""
VERIFIER_RARITY: Final = 300
"""Where the verifier coordinates. Tuned on the split tune of the recorded generations (decision 29): 1.02 to 1.05
times the speed of 100, and at 20 ms as fast as 1000."""
VERIFIER_MIN_PATH_PROBABILITY: Final = 0.0015
"""Bounds the work of decisions, where the verifier coordinates. Tuned beside `VERIFIER_RARITY`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TreeCuts:
    """Drafters keep back paths less likely than one in `rarity`, a coordinator those below `min_path_probability`.

    Without a `rarity` drafters cut as they are used to.
    """

    rarity: int | None
    min_path_probability: float


def plan_cuts(*, is_here: bool) -> TreeCuts:
    """The cuts of a coordinator, `is_here` if that is the verifier's own node.

    A client's link carries each draft twice, and is the slowest of all. Within one node passing on costs no
    bytes, and what is there when a commit comes is there for the next pass.
    """
    if is_here:
        return TreeCuts(rarity=VERIFIER_RARITY, min_path_probability=VERIFIER_MIN_PATH_PROBABILITY)
    return TreeCuts(rarity=None, min_path_probability=CLIENT_MIN_PATH_PROBABILITY)
