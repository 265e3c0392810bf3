"""Which verifier a request asks next: in order of preference, and the overloaded again when they said. Pure."""

from collections import deque
from collections.abc import Iterable
from typing import Final

MAX_RETURNS: Final = 8
"""How often a verifier that is overloaded each time is asked again."""


class VerifierQueue:
    """Verifiers not yet asked come first; one that rests comes again after all of these, when its time has come."""

    def __init__(self, peer_ids: Iterable[str]) -> None:
        self._fresh = deque(peer_ids)
        self._resting: dict[str, float] = {}
        self._returns: dict[str, int] = {}

    def rest(self, peer_id: str, *, until_s: float) -> None:
        """Ask this one again at that time, unless that was done too often."""
        self._returns[peer_id] = self._returns.get(peer_id, 0) + 1
        if self._returns[peer_id] <= MAX_RETURNS:
            self._resting[peer_id] = until_s

    def next(self, now_s: float) -> str | None:
        """Whom to ask now, if anybody; it is then no longer in the queue."""
        if self._fresh:
            return self._fresh.popleft()
        first = min(self._resting, key=self._resting.__getitem__, default=None)
        if first is None or self._resting[first] > now_s:
            return None
        del self._resting[first]
        return first

    @property
    def next_at_s(self) -> float | None:
        """When the first that rests may be asked; None if nobody does."""
        return min(self._resting.values(), default=None)
