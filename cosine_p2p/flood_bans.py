"""Whom to ban of those that come back and go on each time they were disconnected, and for how long. Pure."""

import math
from collections import OrderedDict
from dataclasses import dataclass
from typing import Final

DISCONNECTED: Final = 5
"""A choice: who is disconnected so often within `WITHIN_S` does not stop by itself."""
WITHIN_S: Final = 3600.0
APART_S: Final = 10.0
"""A choice: calls that were under way when a peer was disconnected are no new flood."""
FIRST_BAN_S: Final = 3600.0
"""A choice; each further ban lasts twice as long as the one before."""
LONGEST_BAN_S: Final = 86_400.0
"""A choice: peer ids cost nothing to make, so a longer ban keeps nobody away."""
MAX_PEERS: Final = 4096
"""Bounds memory; those that were disconnected longest ago are forgotten first."""


@dataclass(slots=True)
class _Offender:
    since_s: float
    last_s: float = -math.inf
    disconnected: int = 0


class FloodBans:
    """The peers that were disconnected lately. Times are of one clock."""

    def __init__(self) -> None:
        self._offenders: OrderedDict[str, _Offender] = OrderedDict()

    def note_disconnected(self, peer_id: str, *, now_s: float) -> bool:
        """Count that a peer was disconnected for a flood; True if it is to be banned."""
        offender = self._offenders.pop(peer_id, None) or _Offender(now_s)
        self._offenders[peer_id] = offender
        if len(self._offenders) > MAX_PEERS:
            self._offenders.popitem(last=False)
        if now_s - offender.last_s < APART_S:
            return False
        offender.last_s = now_s
        if now_s - offender.since_s > WITHIN_S:
            offender.since_s, offender.disconnected = now_s, 0
        offender.disconnected += 1
        if offender.disconnected < DISCONNECTED:
            return False
        offender.disconnected = 0
        return True


def ban_s(earlier: int) -> float:
    """The seconds that a ban lasts after so many earlier ones."""
    return float(min(LONGEST_BAN_S, FIRST_BAN_S * 2 ** min(earlier, 10)))
