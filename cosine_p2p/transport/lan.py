"""The local network, where nodes find each other without addresses: multicast DNS over IPv4 (RFC 6762, RFC 6763).

A node advertises its peer id, the name of its network, or the id of its private swarm, and the private addresses of
the interfaces that it listens on. Advertisements are not proved: a false one costs its reader a dial.
"""

import asyncio
import logging
import os
import random
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from ipaddress import IPv4Interface, ip_address
from typing import TYPE_CHECKING, Final

from cosine_p2p.transport.addresses import Scope, scope_of
from cosine_p2p.transport.reach import LEAST_PORT, parsed
from cosine_protocol.errors import BadSignature
from cosine_protocol.identity import public_key_of

if TYPE_CHECKING:
    from zeroconf.asyncio import AsyncZeroconf

LOG = logging.getLogger(__name__)

LAN_VARIABLE: Final = "COSINE_LAN"  # The name of an environment variable.
SERVICE: Final = "_cosine-p2p._tcp.local."
SEARCH_S: Final = 3.0  # The duration of a search without results, in which zeroconf asks three times.
PAUSE_S: Final = 0.2  # Others answer at most 0.12 s after the first (RFC 6762, section 6).
DETAILS_S: Final = 0.5  # Timeout for what a first answer left out.
MAX_NEIGHBOURS: Final = 32  # Bounds a look, which returns some by chance if there are more.
MAX_HOSTS: Final = 4  # Bounds the addresses of one neighbour.
MAX_NAMED_BYTES: Final = 200  # A text of DNS holds 255; names with equal beginnings are distinguished later.


def is_allowed() -> bool:
    """False if the environment forbids the local network."""
    return os.environ.get(LAN_VARIABLE, "1").lower() not in ("0", "false", "no", "off")


def local_links() -> tuple[IPv4Interface, ...]:
    """The private IPv4 addresses of this machine, with their networks."""
    import ifaddr

    ips = (ip for adapter in ifaddr.get_adapters() for ip in adapter.ips)
    found = [IPv4Interface((ip.ip, ip.network_prefix)) for ip in ips if isinstance(ip.ip, str)]
    return tuple(link for link in found if scope_of(str(link.ip)) is Scope.PRIVATE)


def listening_at(host_maddrs: Iterable[str], links: Sequence[IPv4Interface]) -> dict[IPv4Interface, int]:
    """The links that a node with these addresses listens on, each with its TCP port."""
    ports: dict[IPv4Interface, int] = {}
    for address in map(parsed, host_maddrs):
        if address is not None and address.is_plain_tcp and address.port:
            heard = [link for link in links if address.host in ("0.0.0.0", str(link.ip))]
            ports = dict.fromkeys(heard, address.port) | ports
    return ports


def near_maddrs(peer_id: str, hosts: Iterable[str], port: int, links: Iterable[IPv4Interface]) -> tuple[str, ...]:
    """The addresses of a neighbour in the networks of `links`; none for another service."""
    try:
        public_key_of(peer_id)
    except BadSignature:
        return ()
    networks = [link.network for link in links]
    near = [
        host
        for host in hosts
        if scope_of(host) is Scope.PRIVATE and any(ip_address(host) in network for network in networks)
    ]
    return tuple(
        f"/ip4/{host}/tcp/{port}/p2p/{peer_id}" for host in near[:MAX_HOSTS] if LEAST_PORT <= port < 65_536
    )


class Lan:
    """Sockets on `links` that query for neighbours periodically. Created by `open_lan`."""

    def __init__(self, zeroconf: "AsyncZeroconf", links: Sequence[IPv4Interface]) -> None:
        self._zeroconf = zeroconf
        self._links = links

    async def advertise(self, network: str, peer_id: str, ports: Mapping[IPv4Interface, int]) -> None:
        """Advertise a node until the sockets are closed. It has one port: links with another are left out."""
        from zeroconf.asyncio import AsyncServiceInfo

        port = next(iter(ports.values()))
        info = AsyncServiceInfo(
            SERVICE,
            f"{peer_id}.{SERVICE}",
            port,
            properties={b"network": network.encode()[:MAX_NAMED_BYTES]},
            # The name of the machine stays private.
            server=f"{peer_id}.local.",
            parsed_addresses=[str(link.ip) for link, other in ports.items() if other == port],
        )
        # Another claim to this node's name must not hide the node.
        await self._zeroconf.async_register_service(info, cooperating_responders=True)

    async def neighbours(self, network: str) -> dict[str, tuple[str, ...]]:
        """The addresses of nodes of a network that advertise themselves, by peer id."""
        from zeroconf import BadTypeInNameException, IPVersion
        from zeroconf.asyncio import AsyncServiceInfo

        zeroconf, named = self._zeroconf.zeroconf, network.encode()[:MAX_NAMED_BYTES]

        async def addresses(name: str) -> tuple[str, ...]:
            try:
                info = AsyncServiceInfo(SERVICE, name)
            except BadTypeInNameException:
                return ()
            if not info.load_from_cache(zeroconf) and not await info.async_request(zeroconf, 1000 * DETAILS_S):
                return ()
            hosts = info.parsed_addresses(IPVersion.V4Only)
            is_named = info.properties.get(b"network") == named
            return near_maddrs(name.partition(".")[0], hosts, info.port or 0, self._links) if is_named else ()

        # zeroconf bounds what it remembers of the answers; pointers have an alias.
        records = zeroconf.cache.entries_with_name(SERVICE)
        names = list({str(record.alias) for record in records if hasattr(record, "alias")})
        names = random.sample(names, min(len(names), MAX_NEIGHBOURS))
        found = await asyncio.gather(*map(addresses, names))
        return {maddrs[0].rpartition("/")[2]: maddrs for maddrs in found if maddrs}


@asynccontextmanager
async def open_lan(links: Sequence[IPv4Interface]) -> AsyncIterator[Lan]:
    """Open the sockets. Raises `OSError` if the system has none for multicast."""
    from zeroconf import Error, IPVersion
    from zeroconf.asyncio import AsyncServiceBrowser, AsyncZeroconf

    # It logs the input of strangers; failures are raised.
    logging.getLogger("zeroconf").setLevel(logging.CRITICAL)
    try:
        zeroconf = AsyncZeroconf(interfaces=[str(link.ip) for link in links], ip_version=IPVersion.V4Only)
        # The answers are read from its cache.
        browser = AsyncServiceBrowser(zeroconf.zeroconf, SERVICE, handlers=[lambda **_: None])
        try:
            yield Lan(zeroconf, links)
        finally:
            await browser.async_cancel()
            await zeroconf.async_close()
    except Error as error:
        raise OSError(f"multicast DNS does not work ({type(error).__name__})") from error


async def find_neighbours(network: str) -> tuple[str, ...]:
    """The addresses of nodes that advertise a network, soon after the first answers; none after `SEARCH_S`."""
    found: dict[str, tuple[str, ...]] = {}
    links = local_links()
    try:
        if links:
            async with open_lan(links) as lan, asyncio.timeout(SEARCH_S):
                while not found:
                    await asyncio.sleep(PAUSE_S)
                    found = await lan.neighbours(network)
                await asyncio.sleep(PAUSE_S)
                found = await lan.neighbours(network)
    except TimeoutError:
        LOG.debug("no node of the network %s answers in the local network", network)
    except OSError as error:
        LOG.warning("Nodes in the local network cannot be looked for: %s", error)
    return tuple(maddr for maddrs in found.values() for maddr in maddrs)
