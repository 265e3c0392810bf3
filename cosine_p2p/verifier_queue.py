"""The order in which a request asks verifiers: by preference, overloaded ones again later, slow ones last. Pure."""

from collections import Counter, deque
from collections.abc import Iterable
from typing import Final

MAX_BACKOFFS: Final = 8
"""A choice: a verifier that is overloaded so often is given up."""

ASK_AGAIN_S: Final = 2.0
"""A choice: a network daemon that died, at either end, is back after one to two seconds."""


class VerifierQueue:
    """Verifiers not yet asked come first; one that backs off comes after all of these, when its time has come."""

    def __init__(self, peer_ids: Iterable[str]) -> None:
        self._fresh = deque(peer_ids)
        self._backing_off: dict[str, float] = {}
        self._backoffs: Counter[str] = Counter()
        self._last: deque[str] = deque()
        self._left: set[str] = set()

    def back_off(self, peer_id: str, *, until_s: float) -> None:
        """Ask this one again at that time, unless that was done too often."""
        self._backoffs[peer_id] += 1
        if self._backoffs[peer_id] <= MAX_BACKOFFS:
            self._backing_off[peer_id] = until_s

    def ask_again(self, peer_id: str, *, now_s: float) -> None:
        """Ask this one, which served the request until the connection ended, once nobody fresh is left."""
        self.back_off(peer_id, until_s=now_s + ASK_AGAIN_S)

    def ask_last(self, peer_id: str) -> None:
        """Ask this one, which was slow or stood still, once more when all others have failed."""
        if peer_id not in self._left:
            self._left.add(peer_id)
            self._last.append(peer_id)

    def put_back(self, peer_id: str) -> None:
        """Ask this one before all others after all: it was not needed."""
        self._fresh.appendleft(peer_id)

    @property
    def has_fresh(self) -> bool:
        """True if somebody has not been asked yet."""
        return bool(self._fresh)

    def next(self, now_s: float) -> str | None:
        """Whom to ask now, if anybody; it is then no longer in the queue."""
        if self._fresh:
            return self._fresh.popleft()
        first = min(self._backing_off, key=self._backing_off.__getitem__, default=None)
        if first is None and self._last:
            return self._last.popleft()
        if first is None or self._backing_off[first] > now_s:
            return None
        del self._backing_off[first]
        return first

    @property
    def next_at_s(self) -> float | None:
        """The time at which the first that backs off may be asked; None without any."""
        return min(self._backing_off.values(), default=None)
