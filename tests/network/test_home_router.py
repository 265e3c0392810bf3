"""Home routers: who is shown which port, and who may answer."""

import socket
import struct
from random import Random

import pytest

from tests.network.home_router import TCP, UDP, UDP_IDLE_S, HomeRouter, RouterKind, endpoints, readdress

PUBLIC = socket.inet_aton("203.0.113.1")
INSIDE = (socket.inet_aton("192.168.1.2"), 4001)
ONE = (socket.inet_aton("198.51.100.1"), 1000)
OTHER = (socket.inet_aton("198.51.100.2"), 2000)


def _checksum(data: bytes) -> int:
    total: int = sum(struct.unpack(f"!{(len(data) + 1) // 2}H", data + b"\0" * (len(data) % 2)))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return total


def packet_of(source: tuple[bytes, int], target: tuple[bytes, int], *, protocol: int = UDP) -> bytes:
    """A packet with right checksums."""
    if protocol == UDP:
        body = struct.pack("!HHHH", source[1], target[1], 12, 0) + b"data"
        sum_at = 6
    else:
        body = struct.pack("!HHIIBBHHH", source[1], target[1], 7, 9, 5 << 4, 2, 1000, 0, 0) + b"data"
        sum_at = 16
    pseudo = source[0] + target[0] + struct.pack("!BBH", 0, protocol, len(body))
    checksum = 0xFFFF - _checksum(pseudo + body)
    body = body[:sum_at] + checksum.to_bytes(2) + body[sum_at + 2 :]
    head = struct.pack("!BBHHHBBH4s4s", 0x45, 0, 20 + len(body), 1, 0, 64, protocol, 0, source[0], target[0])
    return head[:10] + (0xFFFF - _checksum(head)).to_bytes(2) + head[12:] + body


def is_sound(packet: bytes) -> bool:
    """True if both checksums are right."""
    pseudo = packet[12:20] + struct.pack("!BBH", 0, packet[9], len(packet) - 20)
    return _checksum(packet[:20]) == _checksum(pseudo + packet[20:]) == 0xFFFF


def router_of(kind: RouterKind) -> HomeRouter:
    return HomeRouter(PUBLIC, kind, Random(0).randrange)


@pytest.mark.parametrize("protocol", [TCP, UDP])
def test_a_readdressed_packet_has_right_checksums(protocol: int) -> None:
    packet = packet_of(INSIDE, ONE, protocol=protocol)
    changed = readdress(packet, source=(PUBLIC, 7))
    assert is_sound(packet) and is_sound(changed)
    assert endpoints(changed) == ((PUBLIC, 7), ONE)


@pytest.mark.parametrize(
    ("kind", "answers_of_strangers"),
    [(RouterKind.FULL_CONE, True), (RouterKind.PORT_RESTRICTED, False), (RouterKind.SYMMETRIC, False)],
)
def test_strangers_reach_a_port_only_through_a_full_cone(kind: RouterKind, answers_of_strangers: bool) -> None:
    router = router_of(kind)
    sent = router.outwards(packet_of(INSIDE, ONE), now_s=0.0)
    assert sent is not None
    shown, _ = endpoints(sent)
    asked, stranger = (router.inwards(packet_of(sender, shown), now_s=1.0) for sender in (ONE, OTHER))
    assert asked is not None and endpoints(asked) == (ONE, INSIDE)
    assert (stranger is not None) is answers_of_strangers


@pytest.mark.parametrize("kind", list(RouterKind))
def test_only_a_symmetric_router_shows_each_peer_another_port(kind: RouterKind) -> None:
    router = router_of(kind)
    sent = [router.outwards(packet_of(INSIDE, target), now_s=0.0) for target in (ONE, OTHER)]
    shown = {endpoints(packet)[0] for packet in sent if packet is not None}
    assert len(shown) == (2 if kind is RouterKind.SYMMETRIC else 1)


def test_a_mapping_that_is_not_used_ends() -> None:
    router = router_of(RouterKind.FULL_CONE)
    sent = router.outwards(packet_of(INSIDE, ONE), now_s=0.0)
    assert sent is not None
    answer = packet_of(ONE, endpoints(sent)[0])
    assert router.inwards(answer, now_s=UDP_IDLE_S) is not None
    assert router.inwards(answer, now_s=2 * UDP_IDLE_S + 1) is None
