"""The addresses in strangers' records that are dialled, and how often. Pure.

Anybody may announce anybody's address. What a user gave is dialled as it is; of what records name, public addresses
are, and private ones only in a swarm that the user's own addresses show to be private.
"""

from collections import OrderedDict
from collections.abc import Iterable
from enum import IntEnum
from ipaddress import IPv4Network, IPv6Address, ip_address
from typing import Final

MAX_TRIES: Final = 16
"""A choice: dials of one public host that have not led to a peer; as many nodes as a home network may have."""
TRIES_WINDOW_S: Final = 60.0
"""A choice: the time in which these are counted, as long as a peer that failed is first avoided."""
MAX_HOSTS: Final = 4096
"""Bounds memory; those dialled longest ago are forgotten first."""
_SHARED: Final = IPv4Network("100.64.0.0/10")  # RFC 6598: carriers' and overlay networks


class Reach(IntEnum):
    """The machines that an address can mean, fewest last."""

    NOBODY = 0
    PUBLIC = 1
    PRIVATE = 2
    LOOPBACK = 3


def reach_of(host: str) -> Reach:
    """The reach of an IP address; `NOBODY` for one that no single machine has, or that hides another."""
    try:
        address = ip_address(host.partition("%")[0])
    except ValueError:
        return Reach.NOBODY
    if isinstance(address, IPv6Address):
        if address.ipv4_mapped is not None:
            address = address.ipv4_mapped
        elif address.sixtofour is not None or address.teredo is not None:
            return Reach.NOBODY
    if address.is_loopback:
        return Reach.LOOPBACK
    # Link-local ones, among them those where clouds tell machines their keys, are no place for a node.
    if address.is_multicast or address.is_unspecified or address.is_link_local:
        return Reach.NOBODY
    if address.version == 4 and address in _SHARED:
        return Reach.PRIVATE
    if address.is_private and not address.is_reserved:
        return Reach.PRIVATE
    return Reach.PUBLIC if address.is_global and not address.is_reserved else Reach.NOBODY


class DialPolicy:
    """Decides about hosts that records name. `given` are the IP addresses of peers that the user named.

    One in a private network permits private networks, one of this machine permits those and this machine. Times are
    of one clock that never goes back.
    """

    def __init__(self, given: Iterable[str]) -> None:
        self._widest = max([Reach.PUBLIC, *map(reach_of, given)])
        self._tries: OrderedDict[str, list[float]] = OrderedDict()

    def permits(self, host: str, *, now_s: float) -> bool:
        """True if this IP address may be dialled now."""
        reach = reach_of(host)
        if reach is not Reach.PUBLIC:
            return Reach.NOBODY < reach <= self._widest
        recent = [at_s for at_s in self._tries.get(host, ()) if now_s - at_s < TRIES_WINDOW_S]
        return len(recent) < MAX_TRIES

    def note_try(self, host: str, *, now_s: float) -> None:
        """A dial begins."""
        tries = self._tries.pop(host, [])
        self._tries[host] = [*tries[1 - MAX_TRIES :], now_s]
        if len(self._tries) > MAX_HOSTS:
            self._tries.popitem(last=False)

    def note_peer(self, host: str) -> None:
        """A dial has led to the peer that was meant."""
        self._tries.pop(host, None)
