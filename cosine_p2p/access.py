"""The peers that a node or client talks to: those of a network or private swarm, without denied ones."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from os import PathLike
from pathlib import Path

from cosine_p2p.request.options import ClientOptions
from cosine_p2p.transport.config import DEFAULT_NETWORK
from cosine_p2p.transport.lan import is_allowed
from cosine_p2p.transport.peer_gate import PeerGate
from cosine_p2p.trust.denied_peers import BanFile, DeniedPeers, parse_denied
from cosine_p2p.trust.membership import Membership, read_swarm_file
from cosine_protocol.errors import UsageError


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """A network name, the swarm file of a private swarm, and the denied peers in addition to banned ones.

    Without an `identity_file` a client has a new key in each run; in a private swarm it uses the default identity.
    With `uses_lan` nodes are found, and advertise themselves, in the local network.
    """

    network: str = DEFAULT_NETWORK
    swarm_file: Path | None = None
    denied: frozenset[str] = frozenset()
    identity_file: Path | None = None
    uses_lan: bool = field(default_factory=is_allowed)

    @classmethod
    def parse(
        cls,
        *,
        network: str = DEFAULT_NETWORK,
        swarm: str | PathLike[str] | None = None,
        deny: Sequence[str] = (),
        lan: bool | None = None,
    ) -> "Access":
        """Parse the user's options; `deny` contains peer ids and files of peer ids. Raises `UsageError`."""
        uses_lan = is_allowed() if lan is None else lan
        access = cls(network=network, denied=parse_denied(deny), uses_lan=uses_lan)
        if swarm is None:
            return access
        if network != DEFAULT_NETWORK:
            raise UsageError("A private swarm is a separate network: give --swarm or --network, not both.")
        file = Path(swarm).expanduser()
        return replace(access, network=read_swarm_file(file).swarm_id, swarm_file=file)

    @classmethod
    def of(cls, options: ClientOptions) -> "Access":
        """Read the access of a client's options. Raises `UsageError`."""
        access = cls.parse(
            network=options["network"],
            swarm=options.get("swarm"),
            deny=options.get("deny", ()),
            lan=options.get("lan"),
        )
        identity = options.get("identity")
        return replace(access, identity_file=Path(identity).expanduser()) if identity else access

    @property
    def entrance(self) -> tuple[str, ...]:
        """The command-line options that select this network, without the initial peers."""
        if self.swarm_file is not None:
            return "--swarm", self.swarm_file.name
        return () if self.network == DEFAULT_NETWORK else ("--network", self.network)

    def gate(self, peer_id: str) -> PeerGate:
        """The gate of a peer. Raises `UsageError` if it is not a member of the private swarm now."""
        membership = None
        if self.swarm_file is not None:
            membership = Membership.load(self.swarm_file, peer_id)
            membership.check_own()
        return PeerGate(membership, DeniedPeers(self.denied, BanFile()))
