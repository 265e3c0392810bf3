"""Options of the nodes of a process, and of the network that they share."""

from dataclasses import dataclass
from pathlib import Path

from cosine_node.models.model import ModelSource
from cosine_node.passes.emulation import Emulation
from cosine_p2p.access import Access
from cosine_p2p.transport.config import DEFAULT_HOST_MADDRS, TransportConfig
from cosine_p2p.transport.peer_gate import PeerGate
from cosine_protocol.records import Role


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkOptions:
    """Options of the network that the nodes of a process share."""

    access: Access
    identity_file: Path | None
    initial_peers: tuple[str, ...] = ()
    host_maddrs: tuple[str, ...] = DEFAULT_HOST_MADDRS
    announce_maddrs: tuple[str, ...] = ()
    relays: tuple[str, ...] = ()
    metrics_port: int | None = None
    metrics_host: str = "127.0.0.1"

    def transport_config(self, identity_file: Path, gate: PeerGate, *, is_relay: bool = False) -> TransportConfig:
        return TransportConfig(
            identity_file=identity_file,
            gate=gate,
            network=self.access.network,
            initial_peers=self.initial_peers,
            announce_maddrs=self.announce_maddrs,
            relays=self.relays,
            is_relay=is_relay,
            host_maddrs=self.host_maddrs,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeOptions:
    """Options of one node.

    `home` is the model of the drafter that a verifier holds itself, if any; of `max_coordinated` requests at once
    it coordinates the drafters, by mandates of their clients. With `runs_over_stages` a verifier holds no weights:
    its passes run over a chain of stages, and a second one follows if it `keeps_spare_warm`. A drafter with
    `learn_bytes` learns from texts that it keeps in so many.
    A verifier that `shares_weights` serves those of its target to stages that fetch them.
    """

    role: Role
    source: ModelSource
    home: ModelSource | None = None
    expertise: tuple[str, ...]
    max_requests: int
    max_coordinated: int
    shares_prefixes: bool
    emulation: Emulation | None
    runs_over_stages: bool = False
    keeps_spare_warm: bool = True
    learn_bytes: int | None = None
    shares_weights: bool = True
