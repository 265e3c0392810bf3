"""The part of the internet that a peer's address lies in: what is hard to have many of, other than keys. Pure."""

from ipaddress import ip_network
from typing import Final

from cosine_p2p.transport.addresses import parse_address
from cosine_p2p.transport.dial_policy import Reach, reach_of

PREFIX_BITS: Final = {"ip4": 24, "ip6": 48}
"""The smallest networks that are routed by themselves, such as a provider gives to one customer."""


def range_of(maddr: str) -> str:
    """The network of a public IP address, such as `203.0.113.0/24`; of a relayed peer that of its relay.

    "" for other addresses: in a private network all machines are somebody's own.
    """
    try:
        address = parse_address(maddr)
    except ValueError:
        return ""
    if address.host_kind not in PREFIX_BITS or reach_of(address.host) is not Reach.PUBLIC:
        return ""
    return str(ip_network(f"{address.host}/{PREFIX_BITS[address.host_kind]}", strict=False))
