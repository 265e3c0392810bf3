"""A client's memory of peers: recent failures and measured speeds. Pure."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from statistics import median_low
from typing import Any, Final

from cosine_p2p.storage.memory import Remembered
from cosine_protocol.errors import CosineError, ErrorCode, OlderPeer, PeerError

MAX_PEERS: Final = 1024  # Bounds memory and the file.

# The first pause is longer than most requests, and short for a machine that was restarted. Pauses double up to the
# longest; a peer without a failure for several of the longest starts again with the first.
FIRST_PAUSE_S: Final = 60.0
LONGEST_PAUSE_S: Final = 3600.0
FAILURES_FORGOTTEN_S: Final = 6 * 3600.0


@dataclass(frozen=True, slots=True)
class _Failures:
    count: int
    until_s: float


class PeerFailures:
    """Peers that were lost, broke the protocol, or refused what their record offers: avoided for a time."""

    def __init__(self) -> None:
        self._peers = Remembered[str, _Failures](MAX_PEERS, forgotten_s=FAILURES_FORGOTTEN_S)

    def note_failed(self, peer_id: str, *, now_s: float) -> None:
        """Avoid a peer, each time for twice as long."""
        known = self._peers.get(peer_id, now_s)
        count = known.count if known else 0
        # The exponent is bounded, since 2 ** n overflows a float.
        pause_s = min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2 ** min(count, 16))
        self._peers.note(peer_id, _Failures(count + 1, now_s + pause_s), now_s)

    def note_error(self, peer_id: str, error: CosineError, *, now_s: float) -> None:
        """Avoid a verifier after an error, unless it is older, busy or shutting down."""
        expected = ErrorCode.OVERLOADED, ErrorCode.SHUTTING_DOWN, ErrorCode.OUT_OF_MEMORY
        is_older = isinstance(error, OlderPeer)
        if not (is_older or (isinstance(error, PeerError) and error.code in expected)):
            self.note_failed(peer_id, now_s=now_s)

    def note_served(self, peer_id: str) -> None:
        self._peers.pop(peer_id)

    def avoided(self, now_s: float) -> frozenset[str]:
        return frozenset(peer_id for peer_id, known in self._peers.items(now_s) if known.until_s > now_s)

    def state(self, now_s: float) -> list[list[Any]]:
        """The entries [peer id, count, seconds left to avoid it, seconds since the latest], as values of JSON."""
        return self._peers.state(now_s, lambda peer_id, known: [peer_id, known.count, known.until_s - now_s])

    def restore(self, state: Any, *, now_s: float, away_s: float) -> None:
        """Load the state that another process saved `away_s` ago."""

        def read(peer_id: str, count: int, left_s: float) -> tuple[str, _Failures]:
            return peer_id, _Failures(int(count), now_s + float(left_s) - away_s)

        self._peers.restore(state, read, now_s=now_s, away_s=away_s)


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
        self._peers = Remembered[str, UsualSpeeds](MAX_PEERS, forgotten_s=SPEEDS_FORGOTTEN_S)

    def note_pass(self, peer_id: str, pass_s: float, *, now_s: float) -> None:
        """Note the mean seconds between the commits of a request."""
        speed = self._peers.get(peer_id, now_s) or UsualSpeeds()
        known_s = pass_s if speed.pass_s is None else speed.pass_s
        averaged = replace(speed, pass_s=known_s + NEWEST_WEIGHT * (pass_s - known_s))
        self._peers.note(peer_id, averaged, now_s)

    def note_prefill(self, peer_id: str, token_s: float, *, now_s: float) -> None:
        """Note the seconds for each token of a prompt until the first commit."""
        speed = self._peers.get(peer_id, now_s) or UsualSpeeds()
        slowest_s = max(token_s, PREFILL_DECAY * (speed.prefill_token_s or 0.0))
        self._peers.note(peer_id, replace(speed, prefill_token_s=slowest_s), now_s)

    def passes_s(self, peer_ids: Iterable[str], *, now_s: float) -> dict[str, float]:
        speeds = {peer_id: self._peers.get(peer_id, now_s) for peer_id in peer_ids}
        return {peer_id: speed.pass_s for peer_id, speed in speeds.items() if speed and speed.pass_s is not None}

    def usual(self, peer_ids: Iterable[str], *, now_s: float) -> UsualSpeeds:
        speeds = [speed for peer_id in peer_ids if (speed := self._peers.get(peer_id, now_s))]
        passes_s = [speed.pass_s for speed in speeds if speed.pass_s is not None]
        prefills_s = [speed.prefill_token_s for speed in speeds if speed.prefill_token_s is not None]
        return UsualSpeeds(
            pass_s=median_low(passes_s) if passes_s else None,
            prefill_token_s=median_low(prefills_s) if prefills_s else None,
        )

    def state(self, now_s: float) -> list[list[Any]]:
        """The entries [peer id, pass, prefill of a token, age] in seconds, as values of JSON."""
        return self._peers.state(now_s, lambda peer_id, speed: [peer_id, speed.pass_s, speed.prefill_token_s])

    def restore(self, state: Any, *, now_s: float, away_s: float) -> None:
        """Load the state that another process saved `away_s` ago."""

        def read(peer_id: str, pass_s: float | None, token_s: float | None) -> tuple[str, UsualSpeeds]:
            return peer_id, UsualSpeeds(pass_s=pass_s, prefill_token_s=token_s)

        self._peers.restore(state, read, now_s=now_s, away_s=away_s)
