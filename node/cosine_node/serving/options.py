"""Options of the nodes of a process, one class for each role, and of the network that the nodes share."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from cosine_engine.curve import CostCurve
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
    """The network that the nodes of a process share.

    access: The network, and who may enter it.
    identity_file: Key file of the first node. None: the first free default one.
    initial_peers: Addresses of the nodes to join by.
    host_maddrs: Addresses to listen on.
    announce_maddrs: Addresses to announce to others.
    relays: Relays of a node behind NAT.
    metrics_port: Port of the Prometheus metrics. None: there are none.
    metrics_host: Address that the metrics are served on.
    guest: The operator's rules for when the nodes work.
    """

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
class RoleOptions:
    """The options that all roles have.

    source: The model to serve.
    max_requests: Maximum number of concurrent requests.
    emulation: The device and link to emulate. None: the machine's own.
    share: Part of the time that passes take.
    """

    role: ClassVar[Role]
    is_in_parts: ClassVar[bool] = False
    """True if the model is divided among stages."""

    source: "ModelSource"
    max_requests: int
    emulation: Emulation | None = None
    share: float = 1.0

    @property
    def emulated_curve(self) -> CostCurve | None:
        """The cost of passes of the emulated device. None: passes take the time of the machine."""
        emulation = self.emulation
        return emulation.curve(self.role) if emulation is not None and emulation.has_device else None


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftOptions(RoleOptions):
    """A drafter.

    expertise: The domains that it is good at.
    unload_after_s: Time without work after which the model's memory is given back. None: never.
    """

    role = Role.DRAFTER

    expertise: tuple[str, ...] = ()
    unload_after_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifyOptions(RoleOptions):
    """A verifier.

    home: The model of its own drafter. None: it has none.
    max_coordinated: Maximum number of concurrent requests whose drafters it coordinates.
    shares_prefixes: Compute the common beginning of prompts once for all clients.
    shares_weights: Serve the target's weights to stages that fetch them.
    unload_after_s: Time without work after which the model's memory is given back. None: never.
    """

    role = Role.VERIFIER

    home: "ModelSource | None" = None
    max_coordinated: int = 0
    shares_prefixes: bool = False
    shares_weights: bool = True
    unload_after_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadOptions(VerifyOptions):
    """A verifier without weights, whose passes run over a chain of stages."""

    is_in_parts = True

    @property
    def emulated_curve(self) -> None:
        """Passes over stages take the time of the stages."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StageOptions(RoleOptions):
    """A stage, which holds some layers of a target.

    layers: The layers, such as 8:16, or auto.
    memory: Memory for weights and KV cache: a size, a part of the free memory, or auto.
    shares_weights: Serve the layers' weights to other stages.
    """

    role = Role.STAGE
    is_in_parts = True

    layers: str = AUTO
    memory: str = AUTO
    shares_weights: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinPlan:
    """The plan that the commands of roles carry out, and that `--check` examines.

    network: The network that the nodes join.
    nodes: The nodes, all of one role. Empty for a machine that is only a client.
    target: The target that the nodes serve, or `ALL_TARGETS`.
    """

    network: NetworkOptions
    nodes: tuple[RoleOptions, ...]
    target: str
