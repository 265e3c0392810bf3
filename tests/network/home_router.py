"""A home router: it replaces private addresses by its public one and drops unsolicited packets.

TCP and UDP over IPv4; whole packets in, whole packets out. Pure: times and random numbers are arguments.
"""

import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Final

TCP: Final = 6
UDP: Final = 17
UDP_IDLE_S: Final = 60.0
TCP_IDLE_S: Final = 7200.0
"""Lifetime of an unused mapping; RFC 4787 asks for two minutes of UDP, many routers give one."""
PORTS: Final = range(20_000, 60_000)

Endpoint = tuple[bytes, int]
"""An IPv4 address and a port."""


class RouterKind(Enum):
    """The public port that each peer sees, and the peers that may answer there."""

    FULL_CONE = auto()
    PORT_RESTRICTED = auto()
    SYMMETRIC = auto()


@dataclass(slots=True)
class _Mapping:
    inner: Endpoint
    outer_port: int
    used_at_s: float
    asked: set[Endpoint] = field(default_factory=set)


def header_bytes(packet: bytes) -> int:
    return (packet[0] & 15) * 4


def endpoints(packet: bytes) -> tuple[Endpoint, Endpoint]:
    source_port, target_port = struct.unpack_from("!HH", packet, header_bytes(packet))
    return (packet[12:16], source_port), (packet[16:20], target_port)


def _word_sum(data: bytes) -> int:
    return sum(struct.unpack(f"!{len(data) // 2}H", data))


def _patched_sum(checksum: bytes, before: bytes, after: bytes) -> bytes:
    """An Internet checksum for data in which `after` stands for `before`: a complement modulo 65535 (RFC 1624)."""
    total = 0xFFFF - int.from_bytes(checksum) - _word_sum(before) + _word_sum(after)
    return (0xFFFF - total % 0xFFFF).to_bytes(2)


def readdress(packet: bytes, *, source: Endpoint | None = None, target: Endpoint | None = None) -> bytes:
    """A TCP or UDP packet with another sender or receiver, its checksums put right."""
    head = header_bytes(packet)
    changed = bytearray(packet)
    for endpoint, ip_at, port_at in ((source, 12, head), (target, 16, head + 2)):
        if endpoint is not None:
            changed[ip_at : ip_at + 4], changed[port_at : port_at + 2] = endpoint[0], endpoint[1].to_bytes(2)
    changed[10:12] = _patched_sum(packet[10:12], packet[12:20], bytes(changed[12:20]))
    sum_at = head + (16 if packet[9] == TCP else 6)
    # UDP may go without a checksum.
    if any(packet[sum_at : sum_at + 2]) or packet[9] == TCP:
        before = packet[12:20] + packet[head : head + 4]
        after = bytes(changed[12:20] + changed[head : head + 4])
        changed[sum_at : sum_at + 2] = _patched_sum(packet[sum_at : sum_at + 2], before, after)
    return bytes(changed)


class HomeRouter:
    """`draw` gives a number below its argument. Packets that it returns as None are dropped."""

    def __init__(self, public_ip: bytes, kind: RouterKind, draw: Callable[[int], int]) -> None:
        self.public_ip = public_ip
        self._kind = kind
        self._draw = draw
        self._by_inner: dict[tuple[int, Endpoint, Endpoint | None], _Mapping] = {}
        self._by_outer: dict[tuple[int, int], _Mapping] = {}

    def outwards(self, packet: bytes, *, now_s: float) -> bytes | None:
        """Return the packet that leaves for the internet, for a packet from inside."""
        protocol = packet[9]
        if protocol not in (TCP, UDP):
            return None
        source, target = endpoints(packet)
        is_symmetric = self._kind is RouterKind.SYMMETRIC
        key = protocol, source, target if is_symmetric else None
        mapping = self._by_inner.get(key)
        if mapping is None or self._is_over(protocol, mapping, now_s):
            mapping = _Mapping(source, self._free_port(protocol, source[1], now_s), now_s)
            self._by_inner[key] = self._by_outer[protocol, mapping.outer_port] = mapping
        mapping.used_at_s = now_s
        mapping.asked.add(target)
        return readdress(packet, source=(self.public_ip, mapping.outer_port))

    def inwards(self, packet: bytes, *, now_s: float) -> bytes | None:
        """Return the packet that reaches a machine inside, for a packet from the internet."""
        protocol = packet[9]
        if protocol not in (TCP, UDP):
            return None
        source, (_, port) = endpoints(packet)
        mapping = self._by_outer.get((protocol, port))
        if mapping is None or self._is_over(protocol, mapping, now_s):
            return None
        if self._kind is not RouterKind.FULL_CONE and source not in mapping.asked:
            return None
        mapping.used_at_s = now_s
        return readdress(packet, target=mapping.inner)

    def _free_port(self, protocol: int, wanted: int, now_s: float) -> int:
        """Most routers keep the port if they can; symmetric ones draw another for each peer."""
        port = wanted
        while self._kind is RouterKind.SYMMETRIC or self._is_taken(protocol, port, now_s):
            port = PORTS.start + self._draw(len(PORTS))
            if not self._is_taken(protocol, port, now_s):
                break
        return port

    def _is_taken(self, protocol: int, port: int, now_s: float) -> bool:
        mapping = self._by_outer.get((protocol, port))
        return mapping is not None and not self._is_over(protocol, mapping, now_s)

    def _is_over(self, protocol: int, mapping: _Mapping, now_s: float) -> bool:
        return now_s - mapping.used_at_s > (UDP_IDLE_S if protocol == UDP else TCP_IDLE_S)
