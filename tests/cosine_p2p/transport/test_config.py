"""The settings of a node's transport."""

from pathlib import Path

import pytest

from cosine_p2p.transport.config import TransportConfig


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
