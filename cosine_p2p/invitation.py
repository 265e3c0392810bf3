"""Invitations: a link that holds what someone needs to reach a network.

A link is `cosine:` and parts with commas between: `network=NAME` or `swarm=ID`, `until=DAY`, and addresses of
nodes, which begin with a slash. It has no character that a shell or a URI changes, and holds no secret: a private
swarm still asks for a certificate.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime
from typing import Final
from urllib.parse import quote, unquote

from cosine_p2p.access import Access
from cosine_p2p.transport.config import DEFAULT_NETWORK, check_peer_addresses
from cosine_protocol.errors import UsageError

SCHEME: Final = "cosine:"
MAX_INVITATION_ADDRESSES: Final = 4
"""More would make a QR code too wide for a terminal of 80 columns."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Invitation:
    """The way into a network.

    addresses: Multiaddresses of nodes, each with its peer id.
    network: Name of the network, or id of the private swarm.
    is_private: The network is a private swarm.
    last_day: Last day on which the invitation is valid, in UTC. None: no end.
    """

    addresses: tuple[str, ...]
    network: str = DEFAULT_NETWORK
    is_private: bool = False
    last_day: date | None = None

    def __post_init__(self) -> None:
        """Raise `UsageError` without addresses, with too many, or for one that cannot be dialled."""
        if not 0 < len(self.addresses) <= MAX_INVITATION_ADDRESSES:
            raise UsageError(
                f"An invitation has 1 to {MAX_INVITATION_ADDRESSES} addresses, not {len(self.addresses)}."
            )
        check_peer_addresses(self.addresses)

    @property
    def link(self) -> str:
        parts = []
        if self.is_private or self.network != DEFAULT_NETWORK:
            parts.append(f"{'swarm' if self.is_private else 'network'}={quote(self.network, safe='')}")
        if self.last_day is not None:
            parts.append(f"until={self.last_day.isoformat()}")
        return SCHEME + ",".join((*parts, *self.addresses))

    @classmethod
    def read(cls, link: str) -> "Invitation":
        """Read a link. Raises `UsageError`."""
        addresses, named = [], dict[str, str]()
        for part in link.strip().removeprefix(SCHEME).split(","):
            name, _, value = part.partition("=")
            if part.startswith("/"):
                addresses.append(part)
            elif value and name in ("network", "swarm", "until") and name not in named:
                named[name] = unquote(value)
            else:
                raise UsageError(f"The invitation is damaged, or of a later version, at {part!r}.")
        if {"network", "swarm"} <= named.keys():
            raise UsageError("The invitation is damaged: it names a network and a private swarm.")
        try:
            last_day = date.fromisoformat(named["until"]) if "until" in named else None
        except ValueError:
            raise UsageError(f"The invitation is damaged: {named['until']!r} is no day.") from None
        return cls(
            addresses=tuple(addresses),
            network=named.get("swarm") or named.get("network") or DEFAULT_NETWORK,
            is_private="swarm" in named,
            last_day=last_day,
        )


def follow_invitations(initial_peers: Sequence[str], access: Access) -> tuple[tuple[str, ...], Access]:
    """Replace the links among initial peers by their addresses; return these and the access to their network.

    Raises `UsageError` for an invitation that is damaged or over, or to another network than `access`.
    """
    peers: list[str] = []
    for peer in initial_peers:
        if not peer.startswith(SCHEME):
            peers.append(peer)
            continue
        invitation = Invitation.read(peer)
        if invitation.last_day is not None and datetime.now(UTC).date() > invitation.last_day:
            raise UsageError(f"The invitation was valid until {invitation.last_day}; ask for a new one.")
        if invitation.network != access.network:
            if invitation.is_private:
                raise UsageError(
                    f"The invitation is to the private swarm {invitation.network}, which needs --swarm FILE: send "
                    "its founder what `cosine-node identity` prints."
                )
            if access.network != DEFAULT_NETWORK or access.swarm_file is not None:
                raise UsageError(
                    f"The invitation is to the network {invitation.network}, and {access.network} is given as well."
                )
            access = replace(access, network=invitation.network)
        peers += invitation.addresses
    return tuple(peers), access
