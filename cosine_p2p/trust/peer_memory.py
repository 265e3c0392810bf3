"""A client's memory of peers: recent failures and measured speeds. Pure."""

from collections.abc import Iterable
from dataclasses import dataclass
from statistics import median_low
from typing import Final

from cosine_p2p.storage.memory import Remembered
from cosine_p2p.strategy.moving_average import moving_average
from cosine_protocol.errors import CosineError, ErrorCode, OlderPeer, PeerError

MAX_PEERS: Final = 1024  # Bounds memory and the file.

# The first pause is longer than most requests, and short for a machine that was restarted. Pauses double up to the
# longest; a peer without a failure for several of the longest starts again with the first.
FIRST_PAUSE_S: Final = 60.0
LONGEST_PAUSE_S: Final = 3600.0
FAILURES_FORGOTTEN_S: Final = 6 * 3600.0


class PeerFailures:
    """Peers that were lost, broke the protocol, or refused what their record offers: avoided for a time."""

    def __init__(self) -> None:
        self.counts = Remembered[str, int](MAX_PEERS, forgotten_s=FAILURES_FORGOTTEN_S)

    def note_failed(self, peer_id: str, *, now_s: float) -> None:
        """Avoid a peer, each time for twice as long."""
        self.counts.note(peer_id, (self.counts.get(peer_id, now_s) or 0) + 1, now_s)

    def note_error(self, peer_id: str, error: CosineError, *, now_s: float) -> None:
        """Avoid a verifier after an error, unless it is older, busy or shutting down."""
        expected = ErrorCode.OVERLOADED, ErrorCode.SHUTTING_DOWN, ErrorCode.OUT_OF_MEMORY
        is_older = isinstance(error, OlderPeer)
        if not (is_older or (isinstance(error, PeerError) and error.code in expected)):
            self.note_failed(peer_id, now_s=now_s)

    def note_served(self, peer_id: str) -> None:
        self.counts.pop(peer_id)

    def avoided(self, now_s: float) -> frozenset[str]:
        return frozenset(peer_id for peer_id, count, age_s in self.counts.aged(now_s) if age_s < _pause_s(count))


def _pause_s(failures: int) -> float:
    # The exponent is bounded, since 2 ** n overflows a float.
    return min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2.0 ** min(failures - 1, 16))


NEWEST_WEIGHT: Final = 0.3  # The weight of the newest request, since other clients slow a node at times.
# The slowest prefill counts, since a cached prefix takes no time, and decays by a tenth.
PREFILL_DECAY: Final = 0.9
SPEEDS_FORGOTTEN_S: Final = 7 * 24 * 3600.0  # Machines and their load change within weeks.


@dataclass(frozen=True, slots=True, kw_only=True)
class UsualSpeeds:
    """The median speeds of some peers; None if none was measured."""

    pass_s: float | None = None
    prefill_token_s: float | None = None


class PeerSpeeds:
    """The measured seconds of each verifier between commits, and for each token of a prompt."""

    def __init__(self) -> None:
        self.commits_s = Remembered[str, float](MAX_PEERS, forgotten_s=SPEEDS_FORGOTTEN_S)
        self.prefills_s = Remembered[str, float](MAX_PEERS, forgotten_s=SPEEDS_FORGOTTEN_S)

    def note_pass(self, peer_id: str, pass_s: float, *, now_s: float) -> None:
        """Note the mean seconds between the commits of a request."""
        known_s = self.commits_s.get(peer_id, now_s)
        self.commits_s.note(peer_id, moving_average(known_s, pass_s, weight=NEWEST_WEIGHT), now_s)

    def note_prefill(self, peer_id: str, token_s: float, *, now_s: float) -> None:
        """Note the seconds for each token of a prompt until the first commit."""
        known_s = self.prefills_s.get(peer_id, now_s) or 0.0
        self.prefills_s.note(peer_id, max(token_s, PREFILL_DECAY * known_s), now_s)

    def passes_s(self, peer_ids: Iterable[str], *, now_s: float) -> dict[str, float]:
        return _known(self.commits_s, peer_ids, now_s)

    def usual(self, peer_ids: Iterable[str], *, now_s: float) -> UsualSpeeds:
        passes_s, prefills_s = (_known(each, peer_ids, now_s) for each in (self.commits_s, self.prefills_s))
        return UsualSpeeds(
            pass_s=median_low(passes_s.values()) if passes_s else None,
            prefill_token_s=median_low(prefills_s.values()) if prefills_s else None,
        )


def _known(speeds: Remembered[str, float], peer_ids: Iterable[str], now_s: float) -> dict[str, float]:
    return {peer_id: found for peer_id in peer_ids if (found := speeds.get(peer_id, now_s)) is not None}
