"""Checks of connections: to an address, and from others to this node."""

import socket
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import Final

from cosine_node.doctor.finding import Finding, failure, fine, skipped, warning
from cosine_p2p.transport.addresses import Address, parse_address, split_multiaddr
from cosine_p2p.transport.reach import OBSERVERS
from cosine_protocol.errors import BadSignature
from cosine_protocol.identity import public_key_of

REACH: Final = "reachability"
CONNECT_S: Final = 3.0
"""Timeout of a TCP connection: a distant node connects within a second."""
_FAMILIES: Final = {"ip4": socket.AF_INET, "dns4": socket.AF_INET, "ip6": socket.AF_INET6, "dns6": socket.AF_INET6}


@dataclass(frozen=True, slots=True)
class Way:
    ours: str
    theirs: str


def parse_node_address(text: str) -> Address:
    """Parse an address with a peer id. Raises `ValueError` with a clause that describes the fault."""
    address = parse_address(text, needs_peer=True)
    for peer_id in address.peer_ids:
        try:
            public_key_of(peer_id)
        except BadSignature:
            raise ValueError(f"{peer_id!r} is not the peer id of a node") from None
    return address


def connect(text: str, *, option: str) -> Way | Finding:
    """Connect to the address in `option`, and disconnect. A finding if that fails. Blocks."""
    what = f"{option} {text}"
    try:
        address = parse_node_address(text)
    except ValueError as error:
        fix = f"Write {option} like /ip4/192.0.2.1/tcp/4001/p2p/12D3KooW...."
        return failure(what, f"this is not an address: {error}", fix)
    if not address.is_plain_tcp:
        return skipped(what, "only plain TCP can be tested from here")
    try:
        family = _FAMILIES.get(address.host_kind, socket.AF_UNSPEC)
        found = socket.getaddrinfo(address.host, address.port, family, socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        reason = getattr(error, "strerror", "") or str(error)
        return failure(
            what, f"the name is not known here: {reason}", f"Correct it, or give {option} an IP address."
        )
    host, port = found[0][4][:2]
    try:
        with socket.create_connection((str(host), int(port)), CONNECT_S) as connection:
            return Way(connection.getsockname()[0], connection.getpeername()[0])
    except TimeoutError:
        why = "nothing answers there: the machine is off, or a firewall drops the packets"
        fix = f"Correct the host in {option}, or open the port in the firewall and router on the other side."
    except ConnectionRefusedError:
        why, fix = "nothing listens there", f"Start the node, or correct the port in {option}."
    except OSError as error:
        why = f"there is no route: {error.strerror or error}"
        fix = f"Connect to a network that leads to {option}."
    return failure(what, why, fix)


def judge_reachability(
    *,
    host_maddrs: Sequence[str],
    announce_maddrs: Sequence[str],
    relays: Sequence[str],
    ways: Sequence[Way],
    local: Collection[str] = (),
) -> Finding:
    """Judge whether others could dial a node here, without their help.

    `ways` are successful connections. `local` are this machine's addresses.
    """
    not_tested = "whether a firewall lets others in cannot be tested from this side"
    if relays:
        return fine(REACH, f"others reach this node through {len(relays)} relay(s)")
    if announce_maddrs:
        hidden = [maddr for maddr in announce_maddrs if _is_private(maddr)]
        if hidden:
            found = f"{hidden[0]} is announced, which no peer outside this network can dial"
            return warning(REACH, found, "Name the router's public address with --announce-maddr.")
        return fine(REACH, f"{announce_maddrs[0]} is announced; {not_tested}")
    own = [_ip_of(maddr) for maddr in host_maddrs]
    if own and all(ip is not None and ip.is_loopback for ip in own):
        fix = "To accept connections of others, add --host-maddr /ip4/0.0.0.0/tcp/4001."
        return warning(REACH, "only this machine can reach the node", fix)
    if local and all(":" in place for place in local):
        fix = "Let peers have IPv6, too, or get this machine an IPv4 address; a node with both relays between them."
        return warning(REACH, "this machine has only IPv6 addresses, which peers without IPv6 cannot dial", fix)
    outward = [way for way in ways if not _is_private(way.theirs)]
    if any(not _is_private(place) for place in [*(way.ours for way in outward), *host_maddrs]):
        return fine(REACH, f"this machine has a public address; {not_tested}")
    if outward:
        public, few = len({way.theirs for way in outward}), ""
        if public < OBSERVERS:
            few = (
                f"; these are too few public peers, {public} of {OBSERVERS}, for a direct way to others behind NAT"
            )
        return warning(
            REACH,
            f"this machine is behind NAT, as {outward[0].ours}: unless its router opens a port by itself (UPnP), "
            f"peers reach it through initial peers that relay{few}",
            "Name two `bootstrap` nodes as initial peers, or forward a port and add --announce-maddr. When it is "
            "ready the node says how it is reached.",
        )
    if ways:
        return fine(REACH, f"the initial peers are on this machine's own network; {not_tested}")
    return skipped(REACH, "no initial peer was reached, so nothing is known about outgoing connections")


def _ip_of(place: str) -> IPv4Address | IPv6Address | None:
    """Parse an IP address, or the first part of a multiaddr. None for a host name."""
    try:
        return ip_address(split_multiaddr(place)[0][1] if place.startswith("/") else place)
    except ValueError:
        return None


def _is_private(place: str) -> bool:
    ip = _ip_of(place)
    return ip is not None and not ip.is_global
