"""Multiaddrs of our own: are they well formed, and is their port free?"""

import errno
import socket
from collections.abc import Sequence

from cosine_p2p.transport.config import TransportConfig
from cosine_p2p.transport.hivemind_library import Multiaddr
from cosine_protocol.errors import UsageError

_EXAMPLE = "/ip4/192.0.2.1/tcp/4001"
_FAMILIES = {"ip4": socket.AF_INET, "ip6": socket.AF_INET6}
_KINDS = {"tcp": socket.SOCK_STREAM, "udp": socket.SOCK_DGRAM}


def check_config(config: TransportConfig) -> None:
    """Raises `UsageError` naming the first address that is malformed, or lacks the peer id it needs."""
    for maddr in (*config.host_maddrs, *config.announce_maddrs):
        _check(maddr, needs_peer=False)
    for maddr in config.announce_maddrs:
        if "/tcp/0" in maddr or "/udp/0" in maddr:
            raise UsageError(f"{maddr} cannot be announced: name the port others shall dial instead of 0.")
    for maddr in (*config.initial_peers, *config.relays):
        _check(maddr, needs_peer=True)


def _check(maddr: str, *, needs_peer: bool) -> None:
    example = _EXAMPLE + "/p2p/12D3KooW..." if needs_peer else _EXAMPLE
    try:
        Multiaddr(maddr)
    except (ValueError, LookupError):
        raise UsageError(f"{maddr!r} is not a multiaddr; write it like {example}") from None
    if needs_peer and "/p2p/" not in maddr:
        raise UsageError(f"{maddr} does not say whose address it is; write it like {example}")


def peer_of(maddr: str) -> str:
    """The peer id at the end of a checked address."""
    return maddr.rsplit("/p2p/", 1)[1]


def check_ports_free(host_maddrs: Sequence[str]) -> None:
    """Raises `UsageError` if somebody listens there already.

    p2pd sets SO_REUSEPORT, so a second one would start without complaint and steal half the connections.
    """
    for maddr in host_maddrs:
        _, network, host, kind, port, *_ = [*maddr.split("/"), "", "", "", ""]
        if network in _FAMILIES and kind in _KINDS and port.isdigit():
            _probe(maddr, _FAMILIES[network], _KINDS[kind], (host, int(port)))


def _probe(maddr: str, family: socket.AddressFamily, kind: socket.SocketKind, place: tuple[str, int]) -> None:
    with socket.socket(family, kind) as probe:
        if kind == socket.SOCK_STREAM:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(place)
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                what = "is in use; stop the program that listens there or choose another port"
            else:
                what = f"cannot be listened on ({error.strerror}); choose an address of this machine"
            raise UsageError(f"{maddr} {what} with --host-maddr.") from None


def with_ports(host_maddrs: Sequence[str], visible: Sequence[str]) -> tuple[str, ...]:
    """`host_maddrs` with each port 0 replaced by the port that was given, so that a restart keeps it."""
    return tuple(_with_port(maddr, visible) for maddr in host_maddrs)


def _with_port(maddr: str, visible: Sequence[str]) -> str:
    parts = maddr.split("/")
    if len(parts) < 5 or parts[4] != "0":
        return maddr
    any_host = parts[2] in ("0.0.0.0", "::")
    for other in (text.split("/") for text in visible):
        is_same_kind = len(other) > 4 and (other[1], other[3]) == (parts[1], parts[3])
        if is_same_kind and "p2p-circuit" not in other and (any_host or other[2] == parts[2]):
            return "/".join([*parts[:4], other[4], *parts[5:]])
    return maddr
