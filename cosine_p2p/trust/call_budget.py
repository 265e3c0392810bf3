"""Rate limits of peers and address ranges: token buckets and silencing. Pure."""

import math
from dataclasses import dataclass
from typing import Final

from cosine_p2p.storage.memory import Remembered

PEER_RATE: Final = 50.0  # Units a second: more than twice what a reader of sixteen cells a second needs.
PEER_BURST: Final = 100.0  # Units. A reader of a whole directory of 70 nodes asks each for about 20 cells.
RANGE_FACTOR: Final = 4.0  # The budget of an address range in budgets of a peer.
MAX_REFUSED: Final = 50  # Consecutive calls over the budget after which a peer is silenced.
SILENCED_S: Final = 60.0
MAX_BUCKETS: Final = 4096  # Bounds memory.


@dataclass(slots=True)
class _Bucket:
    """A token bucket."""

    tokens: float
    at_s: float
    refused: int = 0
    low_s: float = 0.0
    silent_until_s: float = 0.0


class CallBudget:
    """Units of work that peers and address ranges may spend; one is about a read of a cell or a signature check.

    A peer is silenced if its bucket was below half of a burst for `flood_s` longer than above. Times are of one
    monotonic clock.
    """

    def __init__(
        self, *, peer_rate: float = PEER_RATE, peer_burst: float = PEER_BURST, flood_s: float = math.inf
    ) -> None:
        self._peer_rate = peer_rate
        self._peer_burst = peer_burst
        self._flood_s = flood_s
        self._peers = Remembered[str, _Bucket](MAX_BUCKETS)
        self._ranges = Remembered[str, _Bucket](MAX_BUCKETS)

    def spend(self, peer_id: str, units: float, *, address_range: str = "", now_s: float) -> bool:
        """Spend a peer's and its range's units; `MAX_REFUSED` refusals in a row silence it for `SILENCED_S`."""
        peer = self._bucket(self._peers, peer_id, now_s, 1.0)
        of_range = self._bucket(self._ranges, address_range, now_s, RANGE_FACTOR) if address_range else None
        if now_s < peer.silent_until_s:
            return False
        if peer.tokens < units or (of_range is not None and of_range.tokens < units):
            # A peer is not silenced for the calls of others in its range.
            peer.refused += peer.tokens < units
            if peer.refused >= MAX_REFUSED:
                peer.refused, peer.silent_until_s = 0, now_s + SILENCED_S
            return False
        peer.refused = 0
        peer.tokens -= units
        if of_range is not None:
            of_range.tokens -= units
        return True

    def owe(self, peer_id: str, units: float, *, now_s: float) -> float:
        """Take units, possibly more than the peer has, and return the seconds until it owes none."""
        known = self._peers.get(peer_id)
        elapsed_s = now_s - known.at_s if known is not None else 0.0
        bucket = self._bucket(self._peers, peer_id, now_s, 1.0)
        is_low = bucket.tokens < self._peer_burst / 2
        bucket.low_s = max(0.0, bucket.low_s + (elapsed_s if is_low else -elapsed_s))
        bucket.tokens -= units
        if bucket.low_s >= self._flood_s:
            bucket.low_s, bucket.silent_until_s = 0.0, now_s + SILENCED_S
        return max(0.0, -bucket.tokens / self._peer_rate)

    def is_silenced(self, peer_id: str, *, now_s: float) -> bool:
        bucket = self._peers.get(peer_id)
        return bucket is not None and now_s < bucket.silent_until_s

    def _bucket(self, buckets: Remembered[str, _Bucket], name: str, now_s: float, factor: float) -> _Bucket:
        most = factor * self._peer_burst
        bucket = buckets.get(name) or _Bucket(most, now_s)
        bucket.tokens = min(most, bucket.tokens + factor * self._peer_rate * (now_s - bucket.at_s))
        bucket.at_s = now_s
        buckets.note(name, bucket)
        return bucket
