"""Options of the nodes of a process, and of the network that they share."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from cosine_engine.pool_size import AUTO
from cosine_node.passes.emulation import Emulation
from cosine_node.serving.guest import GuestRules
from cosine_p2p.access import Access
from cosine_p2p.transport.config import DEFAULT_HOST_MADDRS, TransportConfig
from cosine_p2p.transport.peer_gate import PeerGate
from cosine_protocol.records import Role

if TYPE_CHECKING:
    # A client has neither the packages of a node nor nodes.
    from cosine_engine.models.served import ModelSource


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
    guest: GuestRules = field(default_factory=GuestRules)

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

    role: The role of the node.
    source: The model that it serves.
    home: For a verifier: the model of its own drafter, if any.
    expertise: For a drafter: the domains that it is good at.
    max_requests: Maximum number of requests at once.
    max_coordinated: For a verifier: maximum number of requests at once whose drafters it coordinates.
    shares_prefixes: For a verifier: compute the common beginning of prompts once for all clients.
    emulation: The device and link to emulate, if any.
    runs_over_stages: For a verifier: hold no weights, and run passes over a chain of stages.
    keeps_spare_warm: For a verifier over stages: keep a second chain ready.
    shares_weights: Serve the weights of the target to stages that fetch them.
    unload_after_s: Time without work after which the model's memory is given back; None for never.
    share: Part of the time that the node's passes take.
    layers: For a stage: the layers, such as 8:16, or auto.
    memory: For a stage: memory of weights and KV cache: a size, a part of the free memory, or auto.
    """

    role: Role
    source: "ModelSource"
    home: "ModelSource | None" = None
    expertise: tuple[str, ...] = ()
    max_requests: int
    max_coordinated: int = 0
    shares_prefixes: bool = False
    emulation: Emulation | None = None
    runs_over_stages: bool = False
    keeps_spare_warm: bool = True
    shares_weights: bool = True
    unload_after_s: float | None = None
    share: float = 1.0
    layers: str = AUTO
    memory: str = AUTO

    @property
    def emulated_device(self) -> Emulation | None:
        """The emulation of the passes of the node's role; those over stages take the time of the stages."""
        is_emulated = self.emulation is not None and self.emulation.has_device and not self.runs_over_stages
        return self.emulation if is_emulated else None

    @property
    def is_in_parts(self) -> bool:
        """True for a stage, and for a verifier over stages."""
        return self.role is Role.STAGE or self.runs_over_stages


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinPlan:
    """The plan that `join` carries out and `join --check` examines.

    network: The network that the nodes join.
    nodes: The nodes. None for a machine that is only a client.
    target: The target that the nodes serve, or `ALL_TARGETS`.
    """

    network: NetworkOptions
    nodes: tuple[NodeOptions, ...]
    target: str
