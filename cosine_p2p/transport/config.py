"""A node's settings of the network: those of `HivemindTransport`, without importing it."""

from dataclasses import dataclass, field
from pathlib import Path

from cosine_p2p.transport.peer_gate import PeerGate

DEFAULT_NETWORK = "main"
"""Networks are told apart by name; this one is everybody's."""
DEFAULT_HOST_MADDRS = ("/ip4/0.0.0.0/tcp/0",)
"""Every interface, any free port."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TransportConfig:
    """Addresses are multiaddrs; those of other peers end in `/p2p/<peer id>`.

    `relays` makes a node behind NAT reachable through those peers, `is_relay` offers that to others. A node in
    `client_mode` dials only: it listens on no port and stores nothing for others. `gate` decides who is talked to.
    """

    identity_file: Path
    network: str = DEFAULT_NETWORK
    initial_peers: tuple[str, ...] = ()
    host_maddrs: tuple[str, ...] = DEFAULT_HOST_MADDRS
    announce_maddrs: tuple[str, ...] = ()
    relays: tuple[str, ...] = ()
    is_relay: bool = False
    client_mode: bool = False
    start_timeout_s: float = 20.0
    dial_timeout_s: float = 10.0
    gate: PeerGate = field(default_factory=PeerGate)

    @property
    def is_loopback(self) -> bool:
        """True if the node can only be reached from its own machine; then no router is asked for a port."""
        return all(maddr.startswith(("/ip4/127.", "/ip6/::1/")) for maddr in self.host_maddrs)
