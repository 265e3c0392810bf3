"""Dialling for real, on loopback: who answers proves its peer id, and nobody keeps us waiting."""

import socket

import pytest

from cosine_node.doctor.addresses import DialOutcome, dial, try_port
from tests.node.doctor.examined import OTHER_PEER, running_daemon, running_greeter


def test_a_node_proves_its_peer_id() -> None:
    with running_daemon() as maddr:
        dialled = dial(maddr, timeout_s=5.0)
    assert (dialled.answer, dialled.peer_id) == (DialOutcome.NODE, maddr.rsplit("/", 1)[1])
    assert (dialled.our_ip, dialled.their_ip) == ("127.0.0.1", "127.0.0.1")
    assert dialled.born_s is not None


@pytest.mark.parametrize(
    ("greeting", "detail"),
    [
        (b"", "hung up"),
        (b"SSH-2.0-OpenSSH_9.6\r\n and more than the two answers awaited", "does not speak libp2p"),
        (b"\x13/multistream/1.0.0\n\x03na\nand more than that, too", "does not speak libp2p"),
        (b"\x13/multistream/1.0.0\n\x0b/tls/1.0.0\nno handshake follows", "SSL"),
    ],
)
def test_what_is_no_node_is_found_out(greeting: bytes, detail: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, running_greeter(server, greeting):
        maddr = f"/ip4/127.0.0.1/tcp/{server.getsockname()[1]}/p2p/{OTHER_PEER}"
        dialled = dial(maddr, timeout_s=5.0)
    assert (dialled.answer, detail in dialled.detail) == (DialOutcome.NO_NODE, True), dialled


def test_a_listener_that_says_nothing_is_given_up() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        maddr = f"/ip4/127.0.0.1/tcp/{server.getsockname()[1]}/p2p/{OTHER_PEER}"
        dialled = dial(maddr, timeout_s=0.2)
    assert (dialled.answer, dialled.detail) == (DialOutcome.NO_NODE, "it says nothing")


def test_a_host_that_swallows_packets_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    def swallow(*_: object, **__: object) -> None:
        raise TimeoutError("timed out")

    monkeypatch.setattr(socket, "create_connection", swallow)
    assert dial(f"/ip4/192.0.2.1/tcp/1/p2p/{OTHER_PEER}", timeout_s=0.1).answer is DialOutcome.SILENT


def test_a_name_nobody_knows(monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(*_: object, **__: object) -> None:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    dialled = dial(f"/dns4/boot.example/tcp/1/p2p/{OTHER_PEER}", timeout_s=0.1)
    assert (dialled.answer, dialled.detail) == (DialOutcome.UNRESOLVED, "Name or service not known")


@pytest.mark.parametrize("kind", ["/ip4/127.0.0.1/udp/1/quic-v1", "/ip4/127.0.0.1/tcp/1/ws", "/dnsaddr/a.example"])
def test_what_cannot_be_tried_is_not_judged(kind: str) -> None:
    assert dial(f"{kind}/p2p/{OTHER_PEER}", timeout_s=0.1).answer is DialOutcome.UNTESTED


def test_a_port_is_tried_and_left_free() -> None:
    with socket.socket() as own:
        own.bind(("127.0.0.1", 0))
        port = own.getsockname()[1]
        assert try_port(f"/ip4/127.0.0.1/tcp/{port}").is_taken
    for _ in range(2):
        assert not try_port(f"/ip4/127.0.0.1/tcp/{port}").is_taken
    assert try_port("/ip4/192.0.2.1/tcp/4001").error
    with pytest.raises(ValueError, match="slash"):
        try_port("4001")
