"""The peers that failed this client lately: they are asked after all others until that has faded. Pure."""

import math
from collections import OrderedDict
from dataclasses import dataclass
from typing import Any, Final

from cosine_protocol.errors import CosineError, ErrorCode, PeerError

EXPECTED_REFUSALS: Final = frozenset({ErrorCode.OVERLOADED, ErrorCode.SHUTTING_DOWN, ErrorCode.OUT_OF_MEMORY})
"""Refusals of a verifier that is busy or leaves, whatever its record said some seconds ago."""
FIRST_PAUSE_S: Final = 60.0
"""A choice: longer than most requests, and short for a machine that was only restarted."""
LONGEST_PAUSE_S: Final = 3600.0
"""A choice: pauses double up to it."""
FORGOTTEN_S: Final = 6 * 3600.0
"""A choice: after so long without a failure a peer begins anew."""
MAX_PEERS: Final = 1024
"""Bounds memory; those that failed longest ago are forgotten first."""


@dataclass(slots=True)
class _Failures:
    count: int
    until_s: float
    latest_s: float


class PeerFailures:
    """Peers that were lost, broke the protocol, or refused what their record offers. Times never go back."""

    def __init__(self) -> None:
        self._peers: OrderedDict[str, _Failures] = OrderedDict()

    def note_failed(self, peer_id: str, *, now_s: float) -> None:
        """Avoid a peer for a while, each time for twice as long."""
        known = self._peers.pop(peer_id, None)
        count = known.count if known and now_s - known.latest_s < FORGOTTEN_S else 0
        # The exponent is bounded, since 2 ** n overflows a float.
        pause_s = min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2 ** min(count, 16))
        self._peers[peer_id] = _Failures(count + 1, now_s + pause_s, now_s)
        if len(self._peers) > MAX_PEERS:
            self._peers.popitem(last=False)

    def note_error(self, peer_id: str, error: CosineError, *, now_s: float) -> None:
        """Avoid a verifier for its error, unless it is busy or leaves."""
        if not (isinstance(error, PeerError) and error.code in EXPECTED_REFUSALS):
            self.note_failed(peer_id, now_s=now_s)

    def note_served(self, peer_id: str) -> None:
        """Forget what a peer did before it served a request to its end."""
        self._peers.pop(peer_id, None)

    def avoided(self, now_s: float) -> frozenset[str]:
        """The peers to ask after all others now."""
        return frozenset(peer_id for peer_id, known in self._peers.items() if known.until_s > now_s)

    def state(self, now_s: float) -> list[list[Any]]:
        """All failures as values of JSON: [peer id, count, seconds left to avoid it, seconds since the latest]."""
        return [
            [peer_id, known.count, known.until_s - now_s, now_s - known.latest_s]
            for peer_id, known in self._peers.items()
        ]

    def restore(self, states: Any, *, now_s: float, away_s: float) -> None:
        """Take in the failures that another process kept `away_s` ago; what is broken is left out."""
        for state in states[-MAX_PEERS:] if isinstance(states, list) else ():
            match state:
                case [str(peer_id), int(count), float(left_s), float(age_s)]:
                    if count > 0 and left_s <= LONGEST_PAUSE_S and 0.0 <= age_s < math.inf:
                        until_s, latest_s = now_s + left_s - away_s, now_s - age_s - away_s
                        self._peers[peer_id] = _Failures(count, until_s, latest_s)
