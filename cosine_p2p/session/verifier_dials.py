"""The dials of verifiers: as many as needed, and further ones while those take long. Pure."""

from collections import Counter, deque
from collections.abc import Iterable, Iterator
from typing import Final, Generic, TypeVar

# A needless dial costs a verifier a connection, a late one costs the user time. Most dials take less than half a
# second, several round trips; with half of it (RFC 8305) distant verifiers would often be dialled needlessly, with
# twice as much twelve silent peers would cost 12 s instead of 6 (docs/security.md).
DIAL_NEXT_S: Final = 0.5  # After this time without an answer another verifier is dialled too.
MAX_DIALS: Final = 8  # The number that begins until the first times out, after four seconds.
MAX_BACKOFFS: Final = 8  # At two seconds each, a quarter of a minute in which others are asked too.


_Dial = TypeVar("_Dial")


class VerifierQueue:
    """A queue of verifiers: those not yet asked first, then those whose backoff has ended."""

    def __init__(self, peer_ids: Iterable[str]) -> None:
        self._fresh = deque(peer_ids)
        self._backing_off: dict[str, float] = {}
        self._backoffs: Counter[str] = Counter()
        self._last: deque[str] = deque()
        self._left: set[str] = set()

    def back_off(self, peer_id: str, *, until_s: float) -> None:
        self._backoffs[peer_id] += 1
        if self._backoffs[peer_id] <= MAX_BACKOFFS:
            self._backing_off[peer_id] = until_s

    def ask_last(self, peer_id: str) -> None:
        """Ask a slow or stalled verifier once more after all others."""
        if peer_id not in self._left:
            self._left.add(peer_id)
            self._last.append(peer_id)

    def put_back(self, peer_id: str) -> None:
        self._fresh.appendleft(peer_id)

    def ask_at_once(self, peer_id: str) -> None:
        """Ask a verifier that was found again after those not yet asked."""
        self._backing_off.pop(peer_id, None)
        if peer_id not in self._fresh:
            self._fresh.append(peer_id)

    @property
    def has_fresh(self) -> bool:
        return bool(self._fresh)

    def next(self, now_s: float) -> str | None:
        """Remove and return the verifier to ask now; None for none."""
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
        return min(self._backing_off.values(), default=None)


class VerifierDials(Generic[_Dial]):
    """The dials of a queue's verifiers that are in progress, each with its peer and the time when it is late."""

    def __init__(self, queue: VerifierQueue) -> None:
        self._queue = queue
        self._dials: dict[_Dial, tuple[str, float]] = {}

    def __len__(self) -> int:
        return len(self._dials)

    def __iter__(self) -> Iterator[_Dial]:
        return iter(self._dials)

    def due(self, wanted: int, *, now_s: float) -> Iterator[str]:
        """Yield the verifiers to dial for `wanted` dials that are not late, at most `MAX_DIALS` in all."""
        new = wanted - len(self._dials) + len(self.late(now_s))
        for _ in range(min(new, MAX_DIALS - len(self._dials))):
            peer_id = self._queue.next(now_s)
            if peer_id is None:
                return
            yield peer_id

    def note_begun(self, dial: _Dial, peer_id: str, *, now_s: float) -> None:
        self._dials[dial] = peer_id, now_s + DIAL_NEXT_S

    def note_ended(self, dial: _Dial) -> None:
        del self._dials[dial]

    def late(self, now_s: float) -> list[str]:
        return [peer_id for peer_id, late_at_s in self._dials.values() if late_at_s <= now_s]

    def early(self, now_s: float) -> list[str]:
        return [peer_id for peer_id, late_at_s in self._dials.values() if late_at_s > now_s]

    def next_late_s(self, now_s: float) -> float:
        """Return the time when the next dial is late, or a new one should begin."""
        late_at_s = [at_s for _, at_s in self._dials.values() if at_s > now_s]
        return min(late_at_s, default=now_s + DIAL_NEXT_S)
