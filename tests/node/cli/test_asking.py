"""Commands that ask once take the light way where they can, and the full one where they must."""

from pathlib import Path
from typing import Any

import pytest

from cosine_node.cli import asking
from cosine_p2p import network
from cosine_p2p.access import Access
from tests.cosine_p2p.samples import identity_of

PEER_ID = identity_of(1).peer_id
TCP = f"/ip4/192.0.2.1/tcp/4001/p2p/{PEER_ID}"
QUIC = f"/ip4/192.0.2.1/udp/4001/quic-v1/p2p/{PEER_ID}"


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The transports that `joining` is asked for; py-libp2p is installed."""
    seen: list[Any] = []
    monkeypatch.setattr(network, "joining", lambda *_, transport, **__: seen.append(transport))
    monkeypatch.setattr(asking, "find_spec", lambda name: name)
    return seen


@pytest.mark.parametrize(
    ("maddrs", "transport"),
    [
        ((TCP,), "light"),
        ((TCP, "nonsense"), "light"),
        ((TCP, QUIC), None),
        ((f"/dnsaddr/peers.example/p2p/{PEER_ID}",), None),
    ],
)
def test_the_addresses_decide(asked: list[Any], maddrs: tuple[str, ...], transport: str | None) -> None:
    asking.joining_once(maddrs, Access())
    assert asked == [transport]


def test_the_environment_and_the_installation_decide_first(
    asked: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COSINE_TRANSPORT", "full")
    asking.joining_once((TCP,), Access(), Path("folder"))
    monkeypatch.delenv("COSINE_TRANSPORT")
    monkeypatch.setattr(asking, "find_spec", lambda _: None)
    asking.joining_once((TCP,), Access())
    assert asked == [None, None]
