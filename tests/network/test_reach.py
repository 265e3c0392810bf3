"""Nodes behind each kind of router: the way to them, their report of it, and the delay after a change."""

import pytest

from cosine_p2p.transport.channel import SILENCE_S
from tests.network.home_router import RouterKind
from tests.network.laboratory import Host, Laboratory
from tests.network.peer import PeerProcess
from tests.waiting import wait_until

pytestmark = [pytest.mark.network, pytest.mark.lab]
PUNCHED_S = 6.0
"""libp2p checks at least every 5 s for an address at which others see it."""
SOON_S = 10.0


def public_peers(lab: Laboratory, count: int) -> list[PeerProcess]:
    """Public peers that know each other, the first two of them relays."""
    peers: list[PeerProcess] = []
    for number in range(count):
        known = [peer.maddr for peer in peers[:1]]
        peers.append(PeerProcess(lab.host(f"public{number}"), is_relay=number < 2, initial_peers=known))
    return peers


def inside(lab: Laboratory, name: str, kind: RouterKind) -> Host:
    return lab.host(name, router=lab.router(f"{name}s-home", kind))


def test_a_public_node_is_dialled_back_and_says_so(lab: Laboratory) -> None:
    [boot] = public_peers(lab, 1)
    node = PeerProcess(lab.host("node"), initial_peers=[boot.maddr])
    assert node.reach()["kind"] == "direct"
    assert all(f"/{node.host.addresses[0]}/" in maddr for maddr in node.reach()["maddrs"])
    assert {"tcp", "udp"} == {maddr.split("/")[3] for maddr in node.reach()["maddrs"]}


def test_a_node_behind_a_router_is_relayed_by_the_initial_peers_with_no_option(lab: Laboratory) -> None:
    boots = public_peers(lab, 2)
    node = PeerProcess(
        inside(lab, "node", RouterKind.PORT_RESTRICTED), initial_peers=[boot.maddr for boot in boots]
    )
    reach = node.reach()
    assert reach["kind"] == "relayed" and "too few public peers, 2 of 4" in reach["said"]
    assert all(boot.peer_id in reach["said"] for boot in boots)
    assert all("/p2p-circuit/" in maddr for maddr in reach["maddrs"])
    client = PeerProcess(lab.host("client"), initial_peers=[boots[0].maddr], client_mode=True)
    assert client.dial(node)["is_relayed"]


@pytest.mark.parametrize("kind", [RouterKind.PORT_RESTRICTED, RouterKind.FULL_CONE])
def test_peers_behind_two_routers_come_to_a_direct_way(lab: Laboratory, kind: RouterKind) -> None:
    known = [peer.maddr for peer in public_peers(lab, 4)]
    node = PeerProcess(inside(lab, "node", kind), initial_peers=known)
    client = PeerProcess(
        inside(lab, "client", RouterKind.PORT_RESTRICTED), initial_peers=known, client_mode=True, listens=True
    )
    wait_until(lambda: node.reach()["kind"] in ("punched", "direct"), within_s=SOON_S)
    wait_until(lambda: client.dial(node).get("is_relayed") is False, within_s=2 * PUNCHED_S)


@pytest.mark.parametrize(("publics", "is_client"), [(1, False), (1, True), (4, False)])
def test_peers_behind_one_router_meet_inside(lab: Laboratory, publics: int, is_client: bool) -> None:
    """Peers behind different routers do not."""
    boot = public_peers(lab, publics)[0]
    home, other_home = (lab.router(name, RouterKind.PORT_RESTRICTED) for name in ("home", "other-home"))
    node = PeerProcess(lab.host("node", router=home), initial_peers=[boot.maddr])
    near, far = (
        PeerProcess(lab.host(name, router=router), initial_peers=[boot.maddr], client_mode=is_client)
        for name, router in (("near", home), ("far", other_home))
    )
    assert all("/p2p-circuit/" in maddr for maddr in node.reach()["maddrs"])
    inside = f"/ip4/{node.host.addresses[0]}/"
    assert near.dial(node)["address"].startswith(inside)
    assert not far.dial(node)["address"].startswith(inside)


def test_a_symmetric_router_is_named(lab: Laboratory) -> None:
    known = [peer.maddr for peer in public_peers(lab, 4)]
    node = PeerProcess(inside(lab, "node", RouterKind.SYMMETRIC), initial_peers=known)
    assert node.reach()["kind"] == "relayed"
    assert "symmetric NAT" in node.reach()["said"]


@pytest.mark.parametrize("relays", [1, 2])
def test_a_node_uses_a_relay_again_soon_after_its_restart(lab: Laboratory, relays: int) -> None:
    place = ["/ip4/0.0.0.0/tcp/4001"]
    hosts = [lab.host(f"relay{number}") for number in range(relays)]
    boots = [PeerProcess(host, is_relay=True, host_maddrs=place) for host in hosts]
    node = PeerProcess(
        inside(lab, "node", RouterKind.PORT_RESTRICTED), initial_peers=[boot.maddr for boot in boots]
    )
    assert node.reach()["said"].count("12D3") == relays
    boots[0].kill()
    wait_until(lambda: node.reach()["said"].count("12D3") == relays - 1, within_s=SOON_S)
    again = PeerProcess(hosts[0], is_relay=True, host_maddrs=place)
    wait_until(lambda: node.reach()["said"].count("12D3") == relays, within_s=SOON_S)
    client = PeerProcess(lab.host("client"), initial_peers=[again.maddr], client_mode=True)
    assert "error" not in client.dial(node)


@pytest.mark.parametrize("is_at_home", [True, False])
def test_a_node_with_a_new_address_is_reached_there_soon(lab: Laboratory, is_at_home: bool) -> None:
    [boot] = public_peers(lab, 1)
    host = inside(lab, "node", RouterKind.PORT_RESTRICTED) if is_at_home else lab.host("node")
    node = PeerProcess(host, initial_peers=[boot.maddr])
    client = PeerProcess(lab.host("client"), initial_peers=[boot.maddr], client_mode=True)
    assert "error" not in client.dial(node)
    node.host.move(router=lab.router("mobile", RouterKind.SYMMETRIC) if is_at_home else None)
    if not is_at_home:
        wait_until(lambda: f"/{node.host.addresses[0]}/" in "".join(node.reach()["maddrs"]), within_s=SOON_S)
    wait_until(lambda: "error" not in client.dial(node, timeout_s=SILENCE_S), within_s=SOON_S)
