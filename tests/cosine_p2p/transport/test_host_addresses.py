"""A full node's own addresses: which are refused, which need no router, and which port a restart keeps."""

import socket
from pathlib import Path
from typing import Any

import pytest

from cosine_p2p.transport.config import TransportConfig, check_ports_free, with_ports
from cosine_protocol.errors import UsageError
from cosine_protocol.identity import Identity

PEER = Identity.from_seed(bytes(32)).peer_id


def config(**fields: Any) -> TransportConfig:
    return TransportConfig(identity_file=Path("identity"), **fields)


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"host_maddrs": ("nonsense",)}, "'nonsense' is not a multiaddr; write it like /ip4/192.0.2.1/tcp/4001"),
        ({"announce_maddrs": ("/ip4/192.0.2.1/tcp/0",)}, "cannot be announced: name the port"),
        ({"announce_maddrs": ("/ip4/192.0.2.1/udp/0/quic-v1",)}, "cannot be announced: name the port"),
        ({"initial_peers": ("/ip4/192.0.2.1/tcp/1",)}, "does not say whose address it is"),
        ({"relays": ("",)}, "'' is not a multiaddr; write it like /ip4/192.0.2.1/tcp/4001/p2p/12D3KooW"),
    ],
)
def test_an_address_of_no_use_is_named(fields: dict[str, Any], reason: str) -> None:
    with pytest.raises(UsageError, match=reason):
        config(**fields).check()


def test_good_addresses_pass() -> None:
    peers = (f"/dnsaddr/boot.example/p2p/{PEER}", f"/ip4/192.0.2.1/udp/1/quic-v1/p2p/{PEER}")
    config(announce_maddrs=("/ip4/192.0.2.1/tcp/4001",), initial_peers=peers, relays=peers).check()


@pytest.mark.network
def test_a_port_in_use_is_refused() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(UsageError, match=f"tcp/{port} is in use"):
            check_ports_free([f"/ip4/127.0.0.1/tcp/{port}"])
    check_ports_free(["/ip4/127.0.0.1/tcp/0", "/dns4/localhost/tcp/1", "/unix/a"])


@pytest.mark.parametrize(
    ("maddr", "kept"),
    [
        ("/ip4/0.0.0.0/tcp/0", "/ip4/0.0.0.0/tcp/4001"),
        ("/ip4/192.0.2.1/tcp/0", "/ip4/192.0.2.1/tcp/4001"),
        ("/ip4/192.0.2.9/tcp/0", "/ip4/192.0.2.9/tcp/0"),
        ("/ip4/0.0.0.0/tcp/7", "/ip4/0.0.0.0/tcp/7"),
        ("/ip4/0.0.0.0/udp/0/quic-v1", "/ip4/0.0.0.0/udp/4002/quic-v1"),
        ("/ip6/::/tcp/0", "/ip6/::/tcp/0"),
    ],
)
def test_a_restart_keeps_the_port_that_was_given(maddr: str, kept: str) -> None:
    visible = (
        f"/ip4/198.51.100.1/tcp/9/p2p/{PEER}/p2p-circuit/p2p/{PEER}",
        f"/ip4/192.0.2.1/tcp/4001/p2p/{PEER}",
        f"/ip4/192.0.2.1/udp/4002/quic-v1/p2p/{PEER}",
    )
    assert with_ports((maddr,), visible) == (kept,)


@pytest.mark.parametrize(
    ("host_maddrs", "is_loopback"),
    [
        (("/ip4/127.0.0.1/tcp/0",), True),
        (("/ip4/127.0.0.1/tcp/0", "/ip6/::1/tcp/0"), True),
        (("/ip4/127.0.0.1/tcp/0", "/ip4/0.0.0.0/tcp/0"), False),
        (("/ip6/::12/tcp/0",), False),
        (TransportConfig.__dataclass_fields__["host_maddrs"].default, False),
    ],
)
def test_only_loopback_needs_no_router(host_maddrs: tuple[str, ...], is_loopback: bool) -> None:
    assert TransportConfig(identity_file=Path("identity"), host_maddrs=host_maddrs).is_loopback is is_loopback
