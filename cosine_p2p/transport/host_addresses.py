"""The addresses of a full node's configuration: are they well formed, and is their port free?"""

import errno
import socket
from collections.abc import Iterable, Sequence
from typing import Final

from cosine_p2p.transport.addresses import Address, parse_address, split_multiaddr
from cosine_p2p.transport.config import TransportConfig
from cosine_protocol.errors import UsageError

# Plain names and codes of the system.
_EXAMPLE: Final = "/ip4/192.0.2.1/tcp/4001"
_FAMILIES: Final = {"ip4": socket.AF_INET, "ip6": socket.AF_INET6}
_KINDS: Final = {"tcp": socket.SOCK_STREAM, "udp": socket.SOCK_DGRAM}


def check_config(config: TransportConfig) -> None:
    """Raises `UsageError` naming the first address that is malformed, or lacks the peer id it needs."""
    for maddr in (*config.host_maddrs, *config.announce_maddrs):
        _split(maddr, example=_EXAMPLE)
    for maddr in config.announce_maddrs:
        if {("tcp", "0"), ("udp", "0")} & set(split_multiaddr(maddr)):
            raise UsageError(f"{maddr} cannot be announced: name the port others shall dial instead of 0.")
    check_peer_addresses((*config.initial_peers, *config.relays))


def check_peer_addresses(maddrs: Iterable[str]) -> None:
    """Raises `UsageError` naming the first address that is malformed or does not say whose it is."""
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
    """The peer id at the end of a checked address."""
    return maddr.rsplit("/p2p/", 1)[1]


def check_ports_free(host_maddrs: Sequence[str]) -> None:
    """Raises `UsageError` if somebody listens there already.

    p2pd sets SO_REUSEPORT, so a second one would start without complaint and steal half the connections.
    """
    for maddr in host_maddrs:
        address = _parsed(maddr)
        if address is None or address.host_kind not in _FAMILIES:
            continue
        family, kind = _FAMILIES[address.host_kind], _KINDS[address.port_kind]
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
    """`host_maddrs` with each port 0 replaced by the port that was given, so that a restart keeps it."""
    given = [address for address in map(_parsed, visible) if address and "p2p-circuit" not in address.layers]
    kept = []
    for maddr in host_maddrs:
        wanted = _parsed(maddr)
        if wanted is not None and wanted.port == 0:
            for address in given:
                is_same_host = wanted.host in ("0.0.0.0", "::", address.host)
                if is_same_host and (address.host_kind, address.port_kind) == (wanted.host_kind, wanted.port_kind):
                    maddr = maddr.replace(f"/{wanted.port_kind}/0", f"/{wanted.port_kind}/{address.port}", 1)
                    break
        kept.append(maddr)
    return tuple(kept)


def _parsed(maddr: str) -> Address | None:
    """None for what does not begin with a host and a port, such as a Unix socket."""
    try:
        return parse_address(maddr)
    except ValueError:
        return None
