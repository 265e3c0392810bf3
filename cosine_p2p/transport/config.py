"""The network settings of a full node, with checks of its addresses and ports."""

import errno
import socket
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from cosine_p2p.transport.addresses import split_multiaddr
from cosine_p2p.transport.peer_gate import PeerGate
from cosine_p2p.transport.reach import parsed
from cosine_protocol.errors import UsageError

DEFAULT_NETWORK: Final = "main"  # The name of the public network.
DEFAULT_HOST_MADDRS: Final = (
    "/ip4/0.0.0.0/tcp/0",
    "/ip6/::/tcp/0",
    "/ip4/0.0.0.0/udp/0/quic-v1",
    "/ip6/::/udp/0/quic-v1",
)
"""Every interface, with any free ports."""
_ANYWHERE: Final = ("0.0.0.0", "::")
_EXAMPLE: Final = "/ip4/192.0.2.1/tcp/4001"


@dataclass(frozen=True, slots=True, kw_only=True)
class TransportConfig:
    """Settings of a full node. Addresses are multiaddrs; those of other peers end in `/p2p/<peer id>`.

    A node that others cannot dial is reached through `relays` and initial peers that relay; with `is_relay` a node
    relays for others. In `client_mode` it stores nothing for others, and listens only with `listens`, to punch
    holes.
    """

    identity_file: Path
    network: str = DEFAULT_NETWORK
    initial_peers: tuple[str, ...] = ()
    host_maddrs: tuple[str, ...] = DEFAULT_HOST_MADDRS
    announce_maddrs: tuple[str, ...] = ()
    relays: tuple[str, ...] = ()
    is_relay: bool = False
    client_mode: bool = False
    listens: bool = False
    start_timeout_s: float = 20.0
    dial_timeout_s: float = 10.0
    gate: PeerGate = field(default_factory=PeerGate)

    @property
    def is_loopback(self) -> bool:
        """True if only this machine can reach the node."""
        return all(maddr.startswith(("/ip4/127.", "/ip6/::1/")) for maddr in self.host_maddrs)

    @property
    def has_ports(self) -> bool:
        return self.listens or not self.client_mode

    def check(self) -> None:
        """Raise `UsageError` naming the first address that is malformed, or lacks a peer id."""
        for maddr in (*self.host_maddrs, *self.announce_maddrs):
            _split(maddr, example=_EXAMPLE)
        for maddr in self.announce_maddrs:
            if {("tcp", "0"), ("udp", "0")} & set(split_multiaddr(maddr)):
                raise UsageError(f"{maddr} cannot be announced: give the port that others dial instead of 0.")
        check_peer_addresses((*self.initial_peers, *self.relays))


def check_peer_addresses(maddrs: Iterable[str]) -> None:
    """Raise `UsageError` naming the first address that is malformed or lacks a peer id."""
    for maddr in maddrs:
        example = f"{_EXAMPLE}/p2p/12D3KooW..."
        if "p2p" not in dict(_split(maddr, example=example)):
            raise UsageError(f"{maddr} does not say whose address it is; write it like {example}")


def _split(maddr: str, *, example: str) -> list[tuple[str, str]]:
    try:
        return split_multiaddr(maddr)
    except ValueError:
        raise UsageError(f"{maddr!r} is not a multiaddr; write it like {example}") from None


def peer_of(maddr: str) -> str:
    return maddr.rsplit("/p2p/", 1)[1]


def check_ports_free(host_maddrs: Sequence[str]) -> None:
    """Raise `UsageError` if a port is in use: p2pd sets SO_REUSEPORT and reports no error."""
    for maddr in host_maddrs:
        address = parsed(maddr)
        if address is None or address.host_kind not in ("ip4", "ip6"):
            continue
        if not address.port and address.host in _ANYWHERE:
            # A machine may lack one version of IP.
            continue
        family = socket.AF_INET if address.host_kind == "ip4" else socket.AF_INET6
        kind = socket.SOCK_STREAM if address.port_kind == "tcp" else socket.SOCK_DGRAM
        with socket.socket(family, kind) as probe:
            if kind == socket.SOCK_STREAM:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((address.host, address.port))
            except OSError as error:
                if error.errno == errno.EADDRINUSE:
                    what = "is in use; stop the program that listens there or choose another port"
                else:
                    what = f"cannot be listened on ({error.strerror}); choose an address of this machine"
                raise UsageError(f"{maddr} {what} with --host-maddr.") from None


def with_ports(host_maddrs: Sequence[str], visible: Sequence[str]) -> tuple[str, ...]:
    """Replace each port 0 in `host_maddrs` by the assigned port, so that a restart keeps it."""
    given = [address for address in map(parsed, visible) if address and "p2p-circuit" not in address.layers]
    kept = []
    for maddr in host_maddrs:
        wanted = parsed(maddr)
        if wanted is not None and wanted.port == 0:
            for address in given:
                is_same_host = wanted.host in (*_ANYWHERE, address.host)
                if is_same_host and (address.host_kind, address.port_kind) == (wanted.host_kind, wanted.port_kind):
                    maddr = maddr.replace(f"/{wanted.port_kind}/0", f"/{wanted.port_kind}/{address.port}", 1)
                    break
        kept.append(maddr)
    return tuple(kept)
