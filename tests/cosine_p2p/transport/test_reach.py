"""The verdict about a node's ways in, from what was found out."""

import pytest

from cosine_p2p.transport.reach import OBSERVERS, Findings, ReachKind, judge_reach

US = "/p2p/12D3KooWT3FTL4gp9kXNHAkxymcJGPWvEkBj7jiZfxmWzvur8f5g"
RELAY = "12D3KooWPuvHqAy3arfKQR9c1EPFWFYMW1CtXcrXT9R3kwTRFgpA"
LOOPBACK, HOME, PUBLIC = (f"/ip4/{host}/tcp/4001{US}" for host in ("127.0.0.1", "192.168.1.2", "203.0.114.1"))
CIRCUIT = f"/ip4/198.51.101.1/tcp/4001/p2p/{RELAY}/p2p-circuit{US}"


def seen_at(*ports: int) -> dict[str, str]:
    """What public peers see, each the next of these ports."""
    return {str(peer): f"/ip4/203.0.114.9/udp/{port}/quic-v1" for peer, port in enumerate(ports)}


def test_where_peers_have_come_in_over_quic_alone_relays_lead_light_clients_in() -> None:
    quic = f"/ip4/203.0.114.9/udp/4001/quic-v1{US}"
    reach = judge_reach(Findings(own=(HOME,), dialled_back=(quic,), circuits=(CIRCUIT,), public_peers=1))
    assert (reach.kind, reach.addresses, reach.relays) == (ReachKind.DIRECT, (quic, CIRCUIT), (RELAY,))
    assert f"over QUIC, and over TCP through {RELAY}" in str(reach)


@pytest.mark.parametrize(("own", "announced"), [((LOOPBACK, HOME), (HOME,)), ((HOME, PUBLIC), (PUBLIC,))])
def test_addresses_of_a_network_are_announced_only_where_nothing_better_is_there(
    own: tuple[str, ...], announced: tuple[str, ...]
) -> None:
    assert judge_reach(Findings(own=own)).addresses == announced


@pytest.mark.parametrize(
    ("ports", "kind", "reason"),
    [
        ((7,) * OBSERVERS, ReachKind.PUNCHED, ""),
        ((7, 7), ReachKind.RELAYED, "too few public peers, 2 of 4"),
        ((7, 8), ReachKind.RELAYED, "symmetric NAT"),
    ],
)
def test_a_direct_way_needs_enough_peers_that_see_one_port(
    ports: tuple[int, ...], kind: ReachKind, reason: str
) -> None:
    found = Findings(own=(HOME,), circuits=(CIRCUIT,), public_peers=4, seen_at=seen_at(*ports))
    assert judge_reach(found).kind is kind
    assert reason in str(judge_reach(found))


@pytest.mark.parametrize(("own", "door"), [(HOME, "its router"), (PUBLIC, "a firewall")])
def test_who_lets_nobody_in_and_has_no_relay_is_reached_by_nobody_and_announces_nothing(
    own: str, door: str
) -> None:
    reach = judge_reach(Findings(own=(own,), public_peers=1, asked_back=1))
    assert (reach.kind, reach.addresses) == (ReachKind.NOBODY, ())
    assert f"{door} lets nobody in, and no relay answers" in str(reach)


def test_an_address_that_the_user_named_is_announced_though_nobody_came_through() -> None:
    reach = judge_reach(Findings(own=(PUBLIC,), public_peers=1, asked_back=2, is_named=True))
    assert (reach.kind, reach.addresses) == (ReachKind.UNTESTED, (PUBLIC,))
