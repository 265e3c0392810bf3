"""Stages that may be at fault for what went wrong in a chain, and how much each is suspected. Pure."""

from collections import Counter, deque
from collections.abc import Collection, Mapping
from typing import Final

SUSPECTED_S: Final = 600.0
"""A choice: long against the time in which a head tries other chains, short for a machine that was busy."""
MAX_SUSPICIONS: Final = 256
"""Bounds memory."""
SHARED: Final = 2
"""What one fault weighs. A stage that alone can be at fault has all of it, each of two neighbours half: the guilty
one of a pair weighs more from its next fault on, beside another neighbour."""


class Suspicions:
    """What stages are suspected of, for `SUSPECTED_S`. Times never go back."""

    def __init__(self) -> None:
        self._noted: deque[tuple[float, str, int]] = deque(maxlen=MAX_SUSPICIONS)

    def note(self, peer_ids: Collection[str], *, now_s: float) -> None:
        """One of these stages is at fault."""
        for peer_id in peer_ids:
            self._noted.append((now_s, peer_id, SHARED if len(peer_ids) == 1 else SHARED // 2))

    def weights(self, *, now_s: float) -> Mapping[str, int]:
        """By peer id what a stage is suspected of."""
        found: Counter[str] = Counter()
        for at_s, peer_id, weight in self._noted:
            if now_s - at_s < SUSPECTED_S:
                found[peer_id] += weight
        return found
