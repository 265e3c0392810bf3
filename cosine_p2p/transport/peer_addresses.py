"""Addresses of other peers as a light client can dial them: TCP, direct or through a relay."""

import ipaddress
import re
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from cosine_protocol import limits
from cosine_protocol.errors import UsageError

MAX_KNOWN_PEERS: Final = 16_384
_EXAMPLE: Final = "/ip4/192.0.2.1/tcp/4001/p2p/12D3KooW..."
_PEER_ID: Final = re.compile(rf"[1-9A-HJ-NP-Za-km-z]{{32,{limits.MAX_PEER_ID_BYTES}}}")
_DNS_NAME: Final = re.compile(r"(?=.{1,253}\Z)[A-Za-z0-9]([A-Za-z0-9-]*[A-Za-z0-9])?(\.[A-Za-z0-9-]+)*\.?")
_PORT: Final = re.compile(r"[1-9][0-9]{0,4}")


@dataclass(frozen=True, slots=True)
class PeerAddress:
    """A TCP port of `peer_id`, or with `relay` that relay's port, through which the peer is reached."""

    peer_id: str
    host: str
    port: int
    relay: str | None = None

    def __str__(self) -> str:
        place = f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"
        return f"the relay at {place}" if self.relay else place


def parse_address(maddr: str) -> PeerAddress:
    """Raises `ValueError` for what is no multiaddr over TCP that ends in a peer id."""
    match maddr.split("/"):
        case ["", kind, host, "tcp", port, "p2p", peer_id]:
            relay = None
        case ["", kind, host, "tcp", port, "p2p", relay, "p2p-circuit", "p2p", peer_id]:
            _check_peer_id(relay)
        case _:
            raise ValueError("not an address over TCP that ends in a peer id")
    _check_peer_id(peer_id)
    if not _PORT.fullmatch(port) or int(port) > 0xFFFF:
        raise ValueError("not a port")
    return PeerAddress(peer_id, _host(kind, host), int(port), relay)


def _check_peer_id(text: str) -> None:
    if not _PEER_ID.fullmatch(text):
        raise ValueError("not a peer id")


def _host(kind: str, text: str) -> str:
    if kind == "ip4":
        return str(ipaddress.IPv4Address(text))
    if kind == "ip6":
        return str(ipaddress.IPv6Address(text))
    if kind in ("dns", "dns4", "dns6") and _DNS_NAME.fullmatch(text):
        return text
    raise ValueError("not a host")


def parse_initial_peers(maddrs: Iterable[str]) -> list[PeerAddress]:
    """Addresses a user gave. Raises `UsageError` naming the first that cannot be dialled."""
    return [_parse_given(maddr) for maddr in maddrs]


def _parse_given(maddr: str) -> PeerAddress:
    try:
        return parse_address(maddr)
    except ValueError:
        pass
    if maddr.startswith("/") and "/p2p/" not in maddr:
        raise UsageError(f"{maddr} does not say whose address it is; write it like {_EXAMPLE}")
    raise UsageError(f"{maddr!r} is not an address a light client can dial; write it like {_EXAMPLE}")


class AddressBook:
    """Where peers said they can be reached, the latest word of each; the peers noted longest ago are forgotten."""

    def __init__(self) -> None:
        self._addresses: OrderedDict[str, tuple[str, ...]] = OrderedDict()

    def note(self, peer_id: str, maddrs: Sequence[str]) -> None:
        self._addresses[peer_id] = tuple(maddrs[: limits.MAX_ADDRESSES])
        self._addresses.move_to_end(peer_id)
        if len(self._addresses) > MAX_KNOWN_PEERS:
            self._addresses.popitem(last=False)

    def of(self, peer_id: str) -> list[PeerAddress]:
        """Those that can be dialled, without double ones."""
        return list(dict.fromkeys(_dialable(self._addresses.get(peer_id, ()), peer_id)))


def _dialable(maddrs: Iterable[str], peer_id: str) -> Iterator[PeerAddress]:
    """Of addresses with or without their peer's id at the end, those of this peer over TCP."""
    end = f"/p2p/{peer_id}"
    for maddr in maddrs:
        try:
            yield parse_address(maddr if maddr.endswith(end) else maddr + end)
        except ValueError:
            continue
