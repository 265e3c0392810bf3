"""What a node advertises in the local network, and what it believes of others there."""

import asyncio
from ipaddress import IPv4Interface

import pytest

from cosine_p2p import Client
from cosine_p2p.access import Access
from cosine_p2p.transport.lan import LAN_VARIABLE, MAX_HOSTS, Lan, listening_at, near_maddrs, open_lan
from cosine_protocol.errors import UsageError
from tests.cosine_p2p.samples import identity_of
from tests.scenes import in_real_time

HOME, CAFE, LOOPBACK = map(IPv4Interface, ("192.168.7.2/24", "10.1.0.2/16", "127.0.0.1/8"))
PEER, SECOND, THIRD = (identity_of(number).peer_id for number in (1, 2, 3))


@pytest.mark.parametrize(
    ("host_maddrs", "ports"),
    [
        (("/ip4/0.0.0.0/tcp/4001",), {HOME: 4001, CAFE: 4001}),
        (("/ip4/192.168.7.2/tcp/4001",), {HOME: 4001}),
        (("/ip4/0.0.0.0/tcp/4001", "/ip4/10.1.0.2/tcp/4002"), {HOME: 4001, CAFE: 4001}),
        (("/ip4/127.0.0.1/tcp/4001", "/ip6/::/tcp/4001"), {}),
        (("/ip4/0.0.0.0/udp/4001/quic-v1", "/ip4/8.8.8.8/tcp/4001"), {}),
    ],
)
def test_a_node_advertises_where_it_listens(host_maddrs: tuple[str, ...], ports: dict[IPv4Interface, int]) -> None:
    assert listening_at(host_maddrs, [HOME, CAFE]) == ports


@pytest.mark.parametrize(
    ("peer_id", "host", "port"),
    [
        (PEER, "192.168.8.9", 4001),
        (PEER, "8.8.8.8", 4001),
        (PEER, "127.0.0.1", 4001),
        (PEER, "169.254.169.254", 4001),
        (PEER, "0.0.0.0", 4001),
        (PEER, "192.168.7.9", 443),
        (PEER, "192.168.7.9", 0),
        ("12D3KooWNobody", "192.168.7.9", 4001),
    ],
)
def test_what_is_no_node_of_this_network_is_not_dialled(peer_id: str, host: str, port: int) -> None:
    everywhere = [HOME, LOOPBACK, IPv4Interface("8.8.8.1/24")]
    assert near_maddrs(peer_id, [host], port, everywhere) == ()


def test_few_addresses_of_a_neighbour_are_dialled() -> None:
    hosts = [f"192.168.7.{number}" for number in range(9, 99)]
    found = near_maddrs(PEER, hosts, 4001, [HOME])
    assert (len(found), found[0]) == (MAX_HOSTS, f"/ip4/192.168.7.9/tcp/4001/p2p/{PEER}")


@pytest.mark.network
@in_real_time
async def test_neighbours_are_heard_by_network_and_place() -> None:
    async with open_lan([LOOPBACK]) as ours, open_lan([LOOPBACK]) as theirs:
        await theirs.advertise("office", SECOND, {HOME: 4001})
        await theirs.advertise("home", THIRD, {CAFE: 4001})
        await theirs.advertise("home", PEER, {HOME: 4001, CAFE: 4001})
        at_home = Lan(ours._zeroconf, [HOME])
        async with asyncio.timeout(20):
            while not (found := await at_home.neighbours("home")):  # noqa: ASYNC110  # asks for what it lacks
                await asyncio.sleep(0.1)
        assert found == {PEER: (f"/ip4/192.168.7.2/tcp/4001/p2p/{PEER}",)}


def test_the_environment_disables_the_local_network_unless_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not Access.parse().uses_lan and Access.parse(lan=True).uses_lan
    with pytest.raises(UsageError, match="No initial peers"):
        Client(target="zoo:target")
    monkeypatch.delenv(LAN_VARIABLE)
    assert Access.parse().uses_lan and not Access.parse(lan=False).uses_lan
    with pytest.raises(UsageError, match="No initial peers"):
        Client(target="zoo:target", lan=False)
