"""Round trips that opening a connection or a stream takes, by transport."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundTrips:
    """Number of round trips before the first bytes of a new stream are sent.

    connection: for the first stream to a peer.
    stream: for a further stream.
    quiet_stream: for a stream to a peer from which nothing arrived for `quiet_s`.
    """

    connection: int = 0
    stream: int = 0
    quiet_stream: int = 0
    quiet_s: float = 0.0


AT_ONCE: Final = RoundTrips()
"""A network in which opening takes no time."""
LIGHT: Final = RoundTrips(connection=2, quiet_stream=1, quiet_s=3.0)
"""py-libp2p as `cosine_p2p.transport.light` uses it: the handshakes of TCP and Noise. Protocol names are sent along
with the data that follows."""
FULL: Final = RoundTrips(connection=4)
"""hivemind's daemon over TCP: its handshake, the protocol name of Noise, Noise, and the peer's identification."""
BY_TRANSPORT: Final[Mapping[str, RoundTrips]] = MappingProxyType({"light": LIGHT, "full": FULL})
"""Round trips by the name of a client's transport."""


@dataclass(slots=True)
class Openings:
    """The connections of one peer, and the round trips that its next stream takes."""

    counts: RoundTrips
    _heard_at_s: dict[str, float] = field(default_factory=dict)

    def round_trips(self, peer_id: str, *, now_s: float) -> int:
        """Return the round trips that a new stream to a peer takes."""
        heard_at_s = self._heard_at_s.get(peer_id)
        if heard_at_s is None:
            return self.counts.connection
        is_quiet = self.counts.quiet_s and now_s - heard_at_s > self.counts.quiet_s
        return self.counts.quiet_stream if is_quiet else self.counts.stream

    @property
    def peers(self) -> tuple[str, ...]:
        """The connected peers."""
        return tuple(self._heard_at_s)

    def connect(self, peer_id: str, now_s: float) -> None:
        """Note a new connection with a peer."""
        self._heard_at_s[peer_id] = now_s

    def note_heard(self, peer_id: str, now_s: float) -> None:
        """Note that data arrived from a connected peer."""
        if peer_id in self._heard_at_s:
            self._heard_at_s[peer_id] = now_s

    def forget(self, peer_id: str) -> None:
        """Note the end of the connection with a peer."""
        self._heard_at_s.pop(peer_id, None)
