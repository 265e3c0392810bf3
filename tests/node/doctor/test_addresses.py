"""Addresses: what they say, what dialling them on loopback gives, and what is concluded from it."""

import socket

import pytest

from cosine_node.doctor.addresses import (
    Dialled,
    DialOutcome,
    dial,
    judge_address,
    judge_port,
    judge_reachability,
    parse_node_address,
)
from cosine_node.doctor.finding import CheckStatus
from tests.cosine_p2p.samples import identity_of
from tests.node.doctor.examined import OTHER_PEER, running_daemon, running_greeter

PEER, RELAY = identity_of(1).peer_id, identity_of(2).peer_id
MADDR = f"/ip4/192.0.2.1/tcp/4001/p2p/{PEER}"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("nonsense", "slash"),
        ("/ip4/192.0.2.1/tcp/1", "whose"),
        ("/ip4/192.0.2.1/tcp/1/p2p/QmYyQSo1c1Ym7orWxLYvCrM2EmxFTANf8wXmmE7DWjhx5N", "no peer id of a node"),
    ],
)
def test_the_address_of_a_node_says_whose_it_is(text: str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        parse_node_address(text)
    assert parse_node_address(MADDR).peer_ids == (PEER,)


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


ANY, LAN, PUBLIC, LOOPBACK = "0.0.0.0", "192.168.1.5", "8.8.8.8", "127.0.0.1"


@pytest.mark.parametrize(
    ("host", "announced", "relays", "path", "status", "part"),
    [
        (ANY, [], ["r"], [(LAN, PUBLIC)], CheckStatus.OK, "through 1 relay"),
        (ANY, [PUBLIC], [], [(LAN, PUBLIC)], CheckStatus.OK, "cannot be tested from this side"),
        (ANY, [LAN], [], [(LAN, PUBLIC)], CheckStatus.WARNING, "nobody outside"),
        (LOOPBACK, [], [], [], CheckStatus.WARNING, "only this machine"),
        (PUBLIC, [], [], [], CheckStatus.OK, "public address"),
        (ANY, [], [], [(PUBLIC, PUBLIC)], CheckStatus.OK, "public address"),
        (ANY, [], [], [(LAN, PUBLIC)], CheckStatus.WARNING, "behind NAT, as 192.168.1.5"),
        (ANY, [], [], [(LAN, "192.168.1.1")], CheckStatus.OK, "own network"),
        (ANY, [], [], [], CheckStatus.SKIPPED, "nothing is known"),
    ],
)
def test_reachability_is_judged_by_what_can_be_known(
    host: str, announced: list[str], relays: list[str], path: list[tuple[str, str]], status: CheckStatus, part: str
) -> None:
    found = judge_reachability(
        host_maddrs=[f"/ip4/{host}/tcp/4001"],
        announce_maddrs=[f"/ip4/{each}/tcp/4001" for each in announced],
        relays=relays,
        paths=path,
    )
    assert (found.status, part in found.found) == (status, True)
    assert bool(found.fix) == (status is CheckStatus.WARNING)


def test_behind_nat_too_few_public_peers_are_told_apart_from_enough() -> None:
    def judged(peers: int) -> str:
        paths = [(LAN, f"8.8.8.{number}") for number in range(peers)]
        return judge_reachability(host_maddrs=[], announce_maddrs=[], relays=[], paths=paths, local=[LAN]).found

    assert "too few public peers, 3 of 4" in judged(3)
    assert "too few" not in judged(4)


def test_a_machine_without_ipv4_is_told_so() -> None:
    own = "2600:1::1"
    found = judge_reachability(
        host_maddrs=["/ip6/::/tcp/4001"], announce_maddrs=[], relays=[], paths=[(own, "2600:2::1")], local=[own]
    )
    assert (found.status, "over IPv6 alone" in found.found) == (CheckStatus.WARNING, True)


def test_a_port_is_tried_and_left_free() -> None:
    with socket.socket() as own:
        own.bind((LOOPBACK, 0))
        port = own.getsockname()[1]
        assert judge_port(f"/ip4/127.0.0.1/tcp/{port}").found == "another program listens there"
    for _ in range(2):
        assert judge_port(f"/ip4/127.0.0.1/tcp/{port}").found == "it is free"
    assert "another one at each start" in judge_port("/ip4/127.0.0.1/tcp/0").found
    for maddr, part in (
        ("/ip4/192.0.2.1/tcp/4001", "cannot be listened on: Cannot assign"),
        ("4001", "no address"),
    ):
        found = judge_port(maddr)
        assert (found.what, found.status, part in found.found) == (f"port {maddr}", CheckStatus.FAILURE, True)


def test_a_node_proves_its_peer_id() -> None:
    with running_daemon() as maddr:
        dialled = dial(maddr, timeout_s=5.0)
    assert (dialled.answer, dialled.peer_id) == (DialOutcome.NODE, maddr.rsplit("/", 1)[1])
    assert (dialled.our_ip, dialled.their_ip) == (LOOPBACK, LOOPBACK)
    assert dialled.born_s is not None


@pytest.mark.parametrize(
    ("greeting", "detail"),
    [
        (b"", "hung up"),
        (b"SSH-2.0-OpenSSH_9.6\r\n and more than the two answers awaited", "does not speak libp2p"),
        (b"\x13/multistream/1.0.0\n\x03na\nand more than that, too", "does not speak libp2p"),
        (b"\x13/multistream/1.0.0\n\x0b/tls/1.0.0\nno handshake follows", "SSL"),
        (None, "it says nothing"),
    ],
)
def test_what_is_no_node_is_found_out(greeting: bytes | None, detail: str) -> None:
    with socket.create_server((LOOPBACK, 0)) as server:
        maddr = f"/ip4/127.0.0.1/tcp/{server.getsockname()[1]}/p2p/{OTHER_PEER}"
        if greeting is None:
            dialled = dial(maddr, timeout_s=0.1)
        else:
            with running_greeter(server, greeting):
                dialled = dial(maddr, timeout_s=5.0)
    assert (dialled.answer, detail in dialled.detail) == (DialOutcome.NO_NODE, True), dialled


def test_a_host_that_swallows_packets_is_given_up_and_a_name_may_be_known_to_nobody(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def swallow(*_: object, **__: object) -> None:
        raise TimeoutError("timed out")

    def unknown(*_: object, **__: object) -> None:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "create_connection", swallow)
    assert dial(f"/ip4/192.0.2.1/tcp/1/p2p/{OTHER_PEER}", timeout_s=0.1).answer is DialOutcome.SILENT
    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    dialled = dial(f"/dns4/boot.example/tcp/1/p2p/{OTHER_PEER}", timeout_s=0.1)
    assert (dialled.answer, dialled.detail) == (DialOutcome.UNRESOLVED, "Name or service not known")


@pytest.mark.parametrize("kind", ["/ip4/127.0.0.1/udp/1/quic-v1", "/ip4/127.0.0.1/tcp/1/ws", "/dnsaddr/a.example"])
def test_what_cannot_be_tried_is_not_judged(kind: str) -> None:
    assert dial(f"{kind}/p2p/{OTHER_PEER}", timeout_s=0.1).answer is DialOutcome.UNTESTED
