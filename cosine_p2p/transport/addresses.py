"""Addresses of nodes: multiaddrs (https://multiformats.io/multiaddr) taken apart, and a book of them."""

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from multiaddr import Multiaddr
from multiaddr.exceptions import ProtocolNotFoundError
from multiaddr.protocols import protocol_with_name

from cosine_protocol import limits
from cosine_protocol.errors import UsageError

MAX_KNOWN_PEERS: Final = 16_384
"""Bounds memory: a record holds at most 4 KiB of addresses."""
# Plain names: what an address is like, and the protocols of the multiaddr table that nodes use.
_EXAMPLE: Final = "/ip4/192.0.2.1/tcp/4001/p2p/12D3KooW..."
_HOSTS: Final = frozenset({"ip4", "ip6", "dns", "dns4", "dns6", "dnsaddr"})
_PORTS: Final = frozenset({"tcp", "udp"})
_DIRECT: Final = ("p2p",)
_RELAYED: Final = ("p2p", "p2p-circuit", "p2p")
# What a value is called where it is refused.
_NOUNS: Final = {"ip4": "IPv4 address", "ip6": "IPv6 address", "tcp": "port", "udp": "port", "p2p": "peer id"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Address:
    """A multiaddr that begins with a host and a port.

    `layers` names the protocols over the port, in order. Of two `peer_ids` the first is a relay, which listens
    there, and the second the peer that is reached through it. The port of a dnsaddr, whose records hold whole
    addresses, is 0.
    """

    host_kind: str
    host: str
    port_kind: str
    port: int
    layers: tuple[str, ...] = ()
    peer_ids: tuple[str, ...] = ()

    @property
    def is_plain_tcp(self) -> bool:
        """True if nothing but a peer, or a relay before it, lies over a TCP port."""
        is_plain = self.layers in ((), _DIRECT, _RELAYED)
        return is_plain and self.port_kind == "tcp" and self.host_kind != "dnsaddr"

    @property
    def peer_id(self) -> str:
        """The peer whose address it is, "" if it does not say."""
        return self.peer_ids[-1] if self.peer_ids else ""

    @property
    def relay(self) -> str | None:
        """The peer id of the relay, if there is one."""
        return self.peer_ids[0] if self.layers == _RELAYED else None

    def __str__(self) -> str:
        place = f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"
        return f"the relay at {place}" if self.relay else place


def split_multiaddr(text: str) -> list[tuple[str, str]]:
    """The (protocol, value) pairs of a multiaddr, values in their canonical form, "" where there is none.

    Raises `ValueError` with a clause that says what is wrong.
    """
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
    """Raises `ValueError` with a clause that says what is wrong."""
    parts = split_multiaddr(text)
    if parts[0][0] == "dnsaddr":
        parts.insert(1, ("tcp", "0"))
    if len(parts) < 2 or parts[0][0] not in _HOSTS or parts[1][0] not in _PORTS:
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
    """An address that a light client can dial. Raises `ValueError` unless it is plain TCP and ends in a peer id."""
    address = parse_address(text, needs_peer=True)
    if not address.is_plain_tcp or not address.port:
        raise ValueError("not an address over TCP that ends in a peer id")
    return address


def parse_initial_peers(maddrs: Iterable[str]) -> list[Address]:
    """Addresses a user gave. Raises `UsageError` naming the first that cannot be dialled."""
    addresses = []
    for maddr in maddrs:
        try:
            addresses.append(parse_dialable(maddr))
        except ValueError:
            if maddr.startswith("/") and "/p2p/" not in maddr:
                raise UsageError(f"{maddr} does not say whose address it is; write it like {_EXAMPLE}") from None
            raise UsageError(
                f"{maddr!r} is not an address a light client can dial; write it like {_EXAMPLE}"
            ) from None
    return addresses


class AddressBook:
    """The addresses that peers announced last; those of the peers noted longest ago are forgotten."""

    def __init__(self) -> None:
        self._addresses: OrderedDict[str, tuple[str, ...]] = OrderedDict()

    def note(self, peer_id: str, maddrs: Sequence[str]) -> None:
        self._addresses[peer_id] = tuple(maddrs[: limits.MAX_ADDRESSES])
        self._addresses.move_to_end(peer_id)
        if len(self._addresses) > MAX_KNOWN_PEERS:
            self._addresses.popitem(last=False)

    def of(self, peer_id: str) -> list[Address]:
        """This peer's addresses that can be dialled, each once; its id at their end may be left out."""
        return list(self._dialable(peer_id))

    def maddrs_of(self, peer_id: str) -> list[str]:
        """The same as multiaddrs that end in its id."""
        return list(self._dialable(peer_id).values())

    def _dialable(self, peer_id: str) -> dict[Address, str]:
        end = f"/p2p/{peer_id}"
        found: dict[Address, str] = {}
        for maddr in self._addresses.get(peer_id, ()):
            whole = maddr if maddr.endswith(end) else maddr + end
            try:
                found.setdefault(parse_dialable(whole), whole)
            except ValueError:
                continue
        return found
