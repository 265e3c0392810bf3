"""Addresses: what they say, and what is concluded from dialling them, without dialling any."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cosine_node.doctor.addresses import (
    Address,
    Dialled,
    DialOutcome,
    ReachOptions,
    TriedPort,
    judge_address,
    judge_port,
    judge_reachability,
    parse_address,
)
from cosine_node.doctor.finding import CheckStatus
from tests.cosine_p2p.samples import identity_of

PEER, RELAY = identity_of(1).peer_id, identity_of(2).peer_id


@pytest.mark.parametrize(
    ("text", "host", "port", "peer_id", "is_plain"),
    [
        (f"/ip4/192.0.2.1/tcp/4001/p2p/{PEER}", "192.0.2.1", 4001, PEER, True),
        (f"/ip6/2001:db8::1/tcp/4001/p2p/{PEER}", "2001:db8::1", 4001, PEER, True),
        (f"/dns4/boot.example/tcp/1/p2p/{PEER}", "boot.example", 1, PEER, True),
        (f"/ip4/192.0.2.1/udp/4001/quic-v1/p2p/{PEER}", "192.0.2.1", 4001, PEER, False),
        (f"/ip4/192.0.2.1/tcp/80/ws/p2p/{PEER}", "192.0.2.1", 80, PEER, False),
        (f"/ip4/192.0.2.1/tcp/1/p2p/{RELAY}/p2p-circuit/p2p/{PEER}", "192.0.2.1", 1, RELAY, True),
        (f"/dnsaddr/boot.example/p2p/{PEER}", "boot.example", 0, PEER, False),
    ],
)
def test_an_address_says_who_listens_where(text: str, host: str, port: int, peer_id: str, is_plain: bool) -> None:
    address = parse_address(text, needs_peer=True)
    assert (address.host, address.port, address.peer_id, address.is_plain) == (host, port, peer_id, is_plain)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "slash"),
        ("nonsense", "slash"),
        ("/", "unknown"),
        ("/ip4", "lacks its value"),
        ("/ip4/192.0.2.1", "host and a port"),
        ("/tcp/4001/ip4/192.0.2.1", "host and a port"),
        (f"/ip4/192.0.2.300/tcp/1/p2p/{PEER}", "no IP address"),
        (f"/ip6/192.0.2.1/tcp/1/p2p/{PEER}", "no ip6 address"),
        (f"/ip4/192.0.2.1/tcp/70000/p2p/{PEER}", "no port"),
        (f"/ip4/192.0.2.1/tcp/-1/p2p/{PEER}", "no port"),
        ("/ip4/192.0.2.1/tcp/1", "whose"),
        ("/ip4/192.0.2.1/tcp/1/p2p", "lacks its value"),
        (f"/ip4/192.0.2.1/tcp/1/p2p/{PEER[:-1]}", "no peer id"),
        (f"/ip4/192.0.2.1/carrier-pigeon/1/p2p/{PEER}", "unknown"),
    ],
)
def test_what_is_no_address_is_refused_with_the_reason(text: str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        parse_address(text, needs_peer=True)


@given(
    st.lists(st.sampled_from(["ip4", "tcp", "p2p", "ws", "1", "192.0.2.1", PEER, "", "dns"]) | st.text(max_size=5))
)
def test_any_text_is_an_address_or_a_value_error(words: list[str]) -> None:
    try:
        assert isinstance(parse_address("/" + "/".join(words), needs_peer=False), Address)
    except ValueError as error:
        assert str(error)


MADDR = f"/ip4/192.0.2.1/tcp/4001/p2p/{PEER}"


@pytest.mark.parametrize("answer", list(DialOutcome))
def test_whatever_came_of_dialling_is_judged(answer: DialOutcome) -> None:
    found = judge_address(Dialled(address=MADDR, answer=answer, detail="why", peer_id=PEER), option="--relay")
    good = {DialOutcome.NODE: CheckStatus.OK, DialOutcome.UNTESTED: CheckStatus.SKIPPED}
    assert (found.what, found.status) == (f"--relay {MADDR}", good.get(answer, CheckStatus.FAILURE))
    assert (found.status is CheckStatus.FAILURE) == ("--relay" in found.fix)


def test_through_a_relay_it_is_the_relay_that_answers() -> None:
    maddr = f"/ip4/192.0.2.1/tcp/1/p2p/{RELAY}/p2p-circuit/p2p/{PEER}"
    found = judge_address(Dialled(address=maddr, answer=DialOutcome.NODE, peer_id=RELAY), option="--initial-peers")
    assert found.status is CheckStatus.OK


LAN, PUBLIC, LOOPBACK = "192.168.1.5", "8.8.8.8", "127.0.0.1"


@pytest.mark.parametrize(
    ("hosts", "announced", "relays", "paths", "status", "part"),
    [
        (["0.0.0.0"], [], ["r"], [(LAN, PUBLIC)], CheckStatus.OK, "through 1 relay"),
        (["0.0.0.0"], [PUBLIC], [], [(LAN, PUBLIC)], CheckStatus.OK, "cannot be tested from this side"),
        (["0.0.0.0"], [LAN], [], [(LAN, PUBLIC)], CheckStatus.WARNING, "nobody outside"),
        ([LOOPBACK], [], [], [], CheckStatus.WARNING, "only this machine"),
        ([PUBLIC], [], [], [], CheckStatus.OK, "public address"),
        (["0.0.0.0"], [], [], [(PUBLIC, PUBLIC)], CheckStatus.OK, "public address"),
        (["0.0.0.0"], [], [], [(LAN, PUBLIC)], CheckStatus.WARNING, "behind NAT, as 192.168.1.5"),
        (["0.0.0.0"], [], [], [(LAN, "192.168.1.1")], CheckStatus.OK, "own network"),
        (["0.0.0.0"], [], [], [], CheckStatus.SKIPPED, "nothing is known"),
    ],
)
def test_reachability_is_judged_by_what_can_be_known(
    hosts: list[str],
    announced: list[str],
    relays: list[str],
    paths: list[tuple[str, str]],
    status: CheckStatus,
    part: str,
) -> None:
    place = ReachOptions(
        host_maddrs=tuple(f"/ip4/{host}/tcp/4001" for host in hosts),
        announce_maddrs=tuple(f"/ip4/{host}/tcp/4001" for host in announced),
        relays=tuple(relays),
        paths=tuple(paths),
    )
    found = judge_reachability(place)
    assert (found.status, part in found.found) == (status, True)
    assert bool(found.fix) == (status is CheckStatus.WARNING)


@pytest.mark.parametrize(
    ("port", "status", "part"),
    [
        (TriedPort(maddr="/ip4/0.0.0.0/tcp/0"), CheckStatus.OK, "another one at each start"),
        (TriedPort(maddr="/ip4/0.0.0.0/tcp/4001"), CheckStatus.OK, "free"),
        (TriedPort(maddr="/ip4/0.0.0.0/tcp/4001", is_taken=True), CheckStatus.FAILURE, "another program"),
        (TriedPort(maddr="/ip4/192.0.2.1/tcp/1", error="Cannot assign"), CheckStatus.FAILURE, "Cannot assign"),
    ],
)
def test_ports(port: TriedPort, status: CheckStatus, part: str) -> None:
    found = judge_port(port)
    assert (found.status, part in found.found) == (status, True)
