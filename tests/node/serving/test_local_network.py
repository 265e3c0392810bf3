"""A node finds those of its local network, tells whom, and looks at its own addresses now and then."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from ipaddress import IPv4Interface
from types import SimpleNamespace
from typing import Any

import pytest

from cosine_node.serving import local_network
from cosine_node.serving.local_network import LOOK_S, LOOKS_AT_LINKS, LocalNetwork
from cosine_protocol.errors import PeerLost
from tests.scenes import in_virtual_time

OWN, NEAR, GONE = "own", "near", "gone"
HEARD: dict[str, tuple[str, ...]] = {
    each: (f"/ip4/192.168.1.{number}/tcp/4001/p2p/{each}",) for number, each in enumerate((OWN, NEAR, GONE))
}


class Node:
    """The transport of a node, which meets `NEAR`, and what it has advertised."""

    peer_id = OWN
    listens_at = ("/ip4/0.0.0.0/tcp/4001",)
    config = SimpleNamespace(network="home")

    def __init__(self) -> None:
        self.met: list[str] = []
        self.advertised = 0
        self.looks_at_links = 0

    async def meet(self, peer_id: str, maddrs: Sequence[str]) -> bool:
        if peer_id == GONE:
            raise PeerLost(peer_id, "gone")
        self.met.append(peer_id)
        return self.met.count(peer_id) == 1

    async def advertise(self, *_: object) -> None:
        self.advertised += 1

    async def neighbours(self, network: str) -> dict[str, tuple[str, ...]]:
        return HEARD if network == "home" else {}

    @asynccontextmanager
    async def open_lan(self, links: Sequence[IPv4Interface]) -> AsyncIterator["Node"]:
        yield self

    def links(self) -> tuple[IPv4Interface, ...]:
        self.looks_at_links += 1
        return (IPv4Interface("192.168.1.9/24"),)


@in_virtual_time
async def test_a_neighbour_is_told_once_and_links_are_seldom_listed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    node, events = Node(), list[tuple[str, dict[str, Any]]]()
    monkeypatch.setattr(local_network, "open_lan", node.open_lan)
    monkeypatch.setattr(local_network, "local_links", node.links)
    transport: Any = node
    local = LocalNetwork(transport, lambda event, fields: events.append((event, fields)), looks=True)
    await local.first()
    assert events == [("neighbour", {"peer_id": NEAR, "maddrs": list(HEARD[NEAR])})]
    assert not node.advertised
    local.be_found()
    await asyncio.sleep(20 * LOOKS_AT_LINKS * LOOK_S)
    await local.close()
    assert (node.advertised, len(events), set(node.met)) == (1, 1, {NEAR})
    assert node.looks_at_links <= 2 + 20
