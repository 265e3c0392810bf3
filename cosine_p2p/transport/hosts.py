"""IP addresses: those of host names, and those of this machine on its routes to others."""

import asyncio
import socket
import sys
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Final

from cosine_p2p.transport.addresses import Address, Scope, scope_of

RESOLVE_S: Final = 2.0  # Names that take longer are ignored; a dial resolves them again.
_ELSEWHERE: Final = ("192.0.2.1", "2001:db8::1")  # Unassigned addresses (RFC 5737, RFC 3849) on the default route.


async def hosts_of(given: Sequence[Address]) -> list[str]:
    """The IP addresses of peers, without names that do not resolve."""
    loop = asyncio.get_running_loop()

    async def resolved(address: Address) -> list[str]:
        try:
            async with asyncio.timeout(RESOLVE_S):
                found = await loop.getaddrinfo(address.host, address.port)
        except (OSError, TimeoutError):
            return []
        return [str(place[0]) for *_, place in found]

    return [host for hosts in await asyncio.gather(*map(resolved, given)) for host in hosts]


def local_hosts(remotes: Iterable[str]) -> frozenset[str]:
    """This machine's addresses on its routes to `remotes` and the internet. Sends nothing."""
    found = set()
    for remote in (*remotes, *_ELSEWHERE):
        family = socket.AF_INET6 if ":" in remote else socket.AF_INET
        with suppress(OSError), socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect((remote, 9))
            found.add(str(probe.getsockname()[0]))
    return frozenset(found)


def mtu_bytes(host: str) -> int | None:
    """The MTU of the route to an IP address; None if this machine does not know it."""
    is_v6 = ":" in host
    # IPV6_MTU and IP_MTU of Linux, ipv6(7) and ip(7).
    level, option = (socket.IPPROTO_IPV6, 24) if is_v6 else (socket.IPPROTO_IP, 14)
    with suppress(OSError), socket.socket(socket.AF_INET6 if is_v6 else socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((host, 9))
        return probe.getsockopt(level, option) if sys.platform == "linux" else None
    return None


def is_behind_nat(local: Iterable[str], remotes: Iterable[str]) -> bool:
    """True if a peer has a public address and this machine has none."""
    is_public = any(scope_of(host) is Scope.PUBLIC for host in local)
    return not is_public and any(scope_of(host) is Scope.PUBLIC for host in remotes)
