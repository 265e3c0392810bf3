"""Addresses of nodes: multiaddrs (https://multiformats.io/multiaddr), an address book and the dial policy. Pure.

A record may claim any address. Addresses from the user are dialled without a check; from strangers only public
addresses are, and private ones if the user's are private.
"""

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import IntEnum
from ipaddress import IPv4Network, IPv6Address, ip_address, ip_network
from typing import Final

from multiaddr import Multiaddr
from multiaddr.exceptions import ProtocolNotFoundError
from multiaddr.protocols import protocol_with_name

from cosine_p2p.storage.memory import Remembered
from cosine_protocol.errors import UsageError
from cosine_protocol.fields import MAX_ADDRESSES

MAX_KNOWN_PEERS: Final = 16_384  # Bounds memory: a record has at most 4 KiB of addresses.
_RELAYED: Final = ("p2p", "p2p-circuit", "p2p")
# The names of values in errors.
_NOUNS: Final = {"ip4": "IPv4 address", "ip6": "IPv6 address", "tcp": "port", "udp": "port", "p2p": "peer id"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Address:
    """A multiaddr of a host, a port (0 for dnsaddr) and `layers` above; the first of two peers is the relay."""

    host_kind: str
    host: str
    port_kind: str
    port: int
    layers: tuple[str, ...] = ()
    peer_ids: tuple[str, ...] = ()

    @property
    def is_plain_tcp(self) -> bool:
        """True for a TCP port with no layer but a peer, possibly behind a relay."""
        is_plain = self.layers in ((), ("p2p",), _RELAYED)
        return is_plain and self.port_kind == "tcp" and self.host_kind != "dnsaddr"

    @property
    def peer_id(self) -> str:
        return self.peer_ids[-1] if self.peer_ids else ""

    @property
    def relay(self) -> str | None:
        return self.peer_ids[0] if self.layers == _RELAYED else None

    def __str__(self) -> str:
        place = f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"
        return f"the relay at {place}" if self.relay else place


def split_multiaddr(text: str) -> list[tuple[str, str]]:
    """The (protocol, canonical value or "") pairs of a multiaddr. Raises `ValueError` with a clause."""
    first, *words = text.split("/")
    if first or not words:
        raise ValueError("it does not begin with a slash")
    parts = []
    rest = iter(words)
    for name in rest:
        try:
            has_value = protocol_with_name(name).codec is not None
        except ProtocolNotFoundError:
            raise ValueError(f"{name!r} is unknown") from None
        if not has_value:
            parts.append((name, ""))
            continue
        value = next(rest, "")
        if not value:
            raise ValueError(f"{name!r} lacks its value")
        try:
            parts.append((name, str(Multiaddr(f"/{name}/{value}").value_for_protocol(name))))
        except (ValueError, LookupError):
            raise ValueError(f"{value!r} is no {_NOUNS.get(name, f'value of {name}')}") from None
    return parts


def parse_address(text: str, *, needs_peer: bool = False) -> Address:
    """Raises `ValueError` with the reason as a clause."""
    parts = split_multiaddr(text)
    if parts[0][0] == "dnsaddr":
        parts.insert(1, ("tcp", "0"))
    hosts = ("ip4", "ip6", "dns", "dns4", "dns6", "dnsaddr")
    if len(parts) < 2 or parts[0][0] not in hosts or parts[1][0] not in ("tcp", "udp"):
        raise ValueError("it does not begin with a host and a port")
    (host_kind, host), (port_kind, port), *layers = parts
    address = Address(
        host_kind=host_kind,
        host=host,
        port_kind=port_kind,
        port=int(port),
        layers=tuple(name for name, _ in layers),
        peer_ids=tuple(value for name, value in layers if name == "p2p"),
    )
    if needs_peer and not address.peer_ids:
        raise ValueError("it does not say whose address it is")
    return address


def parse_dialable(text: str) -> Address:
    """Parse an address that a light client can dial: plain TCP, ending in a peer id. Raises `ValueError`."""
    address = parse_address(text, needs_peer=True)
    if not address.is_plain_tcp or not address.port:
        raise ValueError("not an address over TCP that ends in a peer id")
    return address


def parse_initial_peers(maddrs: Iterable[str]) -> list[Address]:
    """Parse addresses from the user. Raises `UsageError` naming the first that cannot be dialled."""
    addresses = []
    for maddr in maddrs:
        try:
            addresses.append(parse_dialable(maddr))
        except ValueError:
            what = f"{maddr!r} is not an address a light client can dial"
            if maddr.startswith("/") and "/p2p/" not in maddr:
                what = f"{maddr} does not say whose address it is"
            raise UsageError(f"{what}; write it like /ip4/192.0.2.1/tcp/4001/p2p/12D3KooW...") from None
    return addresses


class AddressBook:
    """The latest addresses of peers that `parse` accepts; the peers noted longest ago are forgotten."""

    def __init__(self, parse: Callable[[str], Address] = parse_dialable) -> None:
        self._parse = parse
        self._addresses = Remembered[str, tuple[str, ...]](MAX_KNOWN_PEERS)

    def note(self, peer_id: str, maddrs: Sequence[str]) -> None:
        self._addresses.note(peer_id, tuple(maddrs[:MAX_ADDRESSES]))

    def of(self, peer_id: str) -> dict[Address, str]:
        """A peer's addresses, each with its multiaddr, which ends in the peer id."""
        end = f"/p2p/{peer_id}"
        found: dict[Address, str] = {}
        for maddr in self._addresses.get(peer_id) or ():
            whole = maddr if maddr.endswith(end) else maddr + end
            with suppress(ValueError):
                found.setdefault(self._parse(whole), whole)
        return found


MAX_TRIES: Final = 16  # Failed dials of one public host: the number of nodes that a home network may have.
TRIES_WINDOW_S: Final = 60.0
MAX_HOSTS: Final = 4096  # Bounds memory.
_SHARED: Final = IPv4Network("100.64.0.0/10")  # Networks of carriers and overlays (RFC 6598).


class Scope(IntEnum):
    """The machines that can reach an address, fewest last."""

    NONE = 0
    PUBLIC = 1
    PRIVATE = 2
    LOOPBACK = 3


def scope_of(host: str) -> Scope:
    """The scope of an IP address; `NONE` for one that is no unicast address, or that embeds another."""
    try:
        address = ip_address(host.partition("%")[0])
    except ValueError:
        return Scope.NONE
    if isinstance(address, IPv6Address):
        if address.ipv4_mapped is not None:
            address = address.ipv4_mapped
        elif address.sixtofour is not None or address.teredo is not None:
            return Scope.NONE
    if address.is_loopback:
        return Scope.LOOPBACK
    # Link-local addresses include those at which clouds give machines their keys.
    if address.is_multicast or address.is_unspecified or address.is_link_local:
        return Scope.NONE
    if address.version == 4 and address in _SHARED:
        return Scope.PRIVATE
    if address.is_private and not address.is_reserved:
        return Scope.PRIVATE
    return Scope.PUBLIC if address.is_global and not address.is_reserved else Scope.NONE


class DialPolicy:
    """Permits dials to hosts in records: to private hosts or this machine only if a `given` host is as near."""

    def __init__(self, given: Iterable[str]) -> None:
        self._widest = max([Scope.PUBLIC, *map(scope_of, given)])
        self._tries = Remembered[str, list[float]](MAX_HOSTS)

    def note_given(self, host: str) -> None:
        """Permit hosts as near as this one from now on."""
        self._widest = max(self._widest, scope_of(host))

    def permits(self, host: str, *, now_s: float) -> bool:
        scope = scope_of(host)
        if scope is not Scope.PUBLIC:
            return Scope.NONE < scope <= self._widest
        recent = [at_s for at_s in self._tries.get(host) or () if now_s - at_s < TRIES_WINDOW_S]
        return len(recent) < MAX_TRIES

    def takes_try(self, host: str, *, now_s: float) -> bool:
        """Return True, and count a dial, if a host is permitted."""
        if not self.permits(host, now_s=now_s):
            return False
        tries = self._tries.get(host) or []
        self._tries.note(host, [*tries[1 - MAX_TRIES :], now_s])
        return True

    def note_peer(self, host: str) -> None:
        """Forget the dials of a host at which the intended peer was reached."""
        self._tries.pop(host)


PREFIX_BITS: Final = {"ip4": 24, "ip6": 48}
"""The smallest networks in global routing tables. Unlike keys, many of them are expensive to obtain."""


def range_of(maddr: str) -> str:
    """The network of a public IP address (or of the relay), such as `203.0.113.0/24`; else ""."""
    try:
        address = parse_address(maddr)
    except ValueError:
        return ""
    if address.host_kind not in PREFIX_BITS or scope_of(address.host) is not Scope.PUBLIC:
        return ""
    return str(ip_network(f"{address.host}/{PREFIX_BITS[address.host_kind]}", strict=False))


def claimed_range(maddrs: Iterable[str]) -> str:
    """The network of the first public address; "" without one."""
    return next(filter(None, map(range_of, maddrs)), "")
