"""The round trips that opening a connection or a stream takes, by transport, as emulated links charge for them."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundTrips:
    """How often something goes there and back before the first bytes of a new stream are on their way.

    `connection` is for the first stream to a peer; over a relay it is the relay's connection, unless there is one,
    and `circuit` round trips of the whole way, `circuit_wait_s` later. `stream` is for a further stream, and
    `quiet_stream` for one to a peer of whom nothing was heard for `quiet_s`.
    """

    connection: int = 0
    circuit: int = 0
    circuit_wait_s: float = 0.0
    stream: int = 0
    quiet_stream: int = 0
    quiet_s: float = 0.0


AT_ONCE: Final = RoundTrips()
"""Of a network where opening takes no time."""
LIGHT: Final = RoundTrips(connection=2, circuit=2, circuit_wait_s=0.5, quiet_stream=1, quiet_s=3.0)
"""py-libp2p as `cosine_p2p.transport.light` uses it: TCP's handshake and Noise's. Names of protocols go with what
follows them. A circuit takes the question to the relay, which asks the peer, and Noise; relays come later."""
FULL: Final = RoundTrips(connection=4, circuit=4)
"""hivemind's daemon over TCP: its handshake, the name of Noise, Noise, and the peer's identification, for which it
waits. A circuit takes the question and the last three."""
BY_TRANSPORT: Final[Mapping[str, RoundTrips]] = MappingProxyType({"light": LIGHT, "full": FULL})
"""Of clients, by the name of their transport."""


@dataclass(slots=True)
class Openings:
    """The connections of one peer, and what its next stream waits for. Times are the caller's."""

    counts: RoundTrips
    _heard_at_s: dict[str, float] = field(default_factory=dict)

    def has(self, peer_id: str) -> bool:
        """True if there is a connection with a peer."""
        return peer_id in self._heard_at_s

    def round_trips(self, peer_id: str, *, now_s: float, relay: str | None = None) -> tuple[int, int]:
        """Round trips to the first hop, the relay if there is one, and then over the whole way."""
        heard_at_s = self._heard_at_s.get(peer_id)
        if heard_at_s is not None:
            is_quiet = self.counts.quiet_s and now_s - heard_at_s > self.counts.quiet_s
            return 0, self.counts.quiet_stream if is_quiet else self.counts.stream
        if relay is None:
            return 0, self.counts.connection
        return 0 if relay in self._heard_at_s else self.counts.connection, self.counts.circuit

    @property
    def peers(self) -> tuple[str, ...]:
        """Those with whom there are connections."""
        return tuple(self._heard_at_s)

    def connect(self, peer_id: str, now_s: float) -> None:
        """A connection with a peer was made."""
        self._heard_at_s[peer_id] = now_s

    def note_heard(self, peer_id: str, now_s: float) -> None:
        """Something came from a peer; what comes late makes no connection."""
        if peer_id in self._heard_at_s:
            self._heard_at_s[peer_id] = now_s

    def forget(self, peer_id: str) -> None:
        """The connection with a peer is gone."""
        self._heard_at_s.pop(peer_id, None)
