"""The reachability of a node, judged by its findings."""

import pytest

from cosine_p2p.transport.reach import OBSERVERS, Findings, ReachKind, judge_reach

US = "/p2p/12D3KooWT3FTL4gp9kXNHAkxymcJGPWvEkBj7jiZfxmWzvur8f5g"
RELAY = "12D3KooWPuvHqAy3arfKQR9c1EPFWFYMW1CtXcrXT9R3kwTRFgpA"
LOOPBACK, HOME, PUBLIC = (f"/ip4/{host}/tcp/4001{US}" for host in ("127.0.0.1", "192.168.1.2", "203.0.114.1"))
CIRCUIT = f"/ip4/198.51.101.1/tcp/4001/p2p/{RELAY}/p2p-circuit{US}"


QUIC = f"/ip4/203.0.114.9/udp/4001/quic-v1{US}"


def relayed(*ports: int) -> Findings:
    """Findings of a node with a relay that public peers see at these ports, one each."""
    seen_at = {str(peer): f"/ip4/203.0.114.9/udp/{port}/quic-v1" for peer, port in enumerate(ports)}
    return Findings(own=(HOME,), circuits=(CIRCUIT,), public_peers=4, seen_at=seen_at)


@pytest.mark.parametrize(
    ("found", "kind", "announced", "reason"),
    [
        (Findings(own=(LOOPBACK, HOME)), ReachKind.LOCAL, (HOME,), ""),
        (Findings(own=(HOME, PUBLIC)), ReachKind.UNTESTED, (PUBLIC,), ""),
        (
            Findings(own=(HOME,), dialled_back=(QUIC,), circuits=(CIRCUIT,), public_peers=1),
            *(ReachKind.DIRECT, (QUIC, CIRCUIT), f"over QUIC, and over TCP through {RELAY}"),
        ),
        (relayed(*(7,) * OBSERVERS), ReachKind.PUNCHED, (CIRCUIT,), ""),
        (relayed(7, 7), ReachKind.RELAYED, (CIRCUIT,), "too few public peers, 2 of 4"),
        (relayed(7, 8), ReachKind.RELAYED, (CIRCUIT,), "symmetric NAT"),
        (Findings(own=(HOME,), public_peers=1, asked_back=1), ReachKind.NOBODY, (), "its router blocks"),
        (Findings(own=(PUBLIC,), public_peers=1, asked_back=1), ReachKind.NOBODY, (), "a firewall blocks"),
        (Findings(own=(PUBLIC,), public_peers=1, asked_back=2, is_named=True), ReachKind.UNTESTED, (PUBLIC,), ""),
    ],
)
def test_findings_decide_the_kind_the_addresses_and_the_reason(
    found: Findings, kind: ReachKind, announced: tuple[str, ...], reason: str
) -> None:
    reach = judge_reach(found)
    assert (reach.kind, reach.addresses) == (kind, announced)
    assert reason in str(reach)
