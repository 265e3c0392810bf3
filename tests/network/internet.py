"""The internet of a laboratory: a process that carries packets between the TUN devices of hosts.

It is told by JSON messages over a socket what `Laboratory` wants: hosts with their device, addresses and rates,
home routers, and ways between hosts. It runs at real-time priority where it may, so that a busy machine makes hosts
slow and not the ways between them.
"""

import heapq
import json
import os
import random
import select
import socket
import sys
import time
from contextlib import suppress
from dataclasses import dataclass, field
from ipaddress import ip_address
from typing import Any, Final

from tests.network.home_router import HomeRouter, RouterKind

AT_ONCE: Final = 64
"""Packets of one host before the others have their turn."""
LINE_QUEUE_S: Final = 0.1
"""What waits longer for a line is dropped, as by a modem's buffer."""


@dataclass(slots=True)
class _Line:
    """One direction of a host's line: `rate` bits a second, 0 for any number."""

    rate: float = 0.0
    free_at_s: float = 0.0

    def passed_at_s(self, now_s: float, bits: int) -> float | None:
        """When the last bit is through; None where the queue is full."""
        if not self.rate:
            return now_s
        if self.free_at_s - now_s > LINE_QUEUE_S:
            return None
        self.free_at_s = max(now_s, self.free_at_s) + bits / self.rate
        return self.free_at_s


@dataclass(slots=True)
class _Host:
    name: str
    device: int
    router: str = ""
    up: _Line = field(default_factory=_Line)
    down: _Line = field(default_factory=_Line)


@dataclass(frozen=True, slots=True)
class _Way:
    """`one_way_s` each way, and the share of packets that is lost."""

    one_way_s: float
    loss: float


class Internet:
    """Carries packets until its control socket closes."""

    def __init__(self, control: socket.socket, *, seed: int) -> None:
        self._control = control
        self._rng = random.Random(seed)
        self._hosts: dict[str, _Host] = {}
        self._routers: dict[str, HomeRouter] = {}
        self._owners: dict[bytes, str] = {}  # of public addresses: a host or a router
        self._inside: dict[tuple[str, bytes], str] = {}  # of private addresses behind a router
        self._ways: dict[frozenset[str], _Way] = {}
        self._usual = _Way(0.0, 0.0)
        self._under_way: list[tuple[float, int, int, bytes]] = []
        self._carried_bytes: dict[str, int] = {}
        self._count = 0

    def run(self) -> None:
        while True:
            now_s = time.monotonic()
            while self._under_way and self._under_way[0][0] <= now_s:
                _, _, device, packet = heapq.heappop(self._under_way)
                try:
                    os.write(device, packet)
                except OSError:
                    # The host has gone down or has no room.
                    continue
            wait_s = max(0.0, self._under_way[0][0] - now_s) if self._under_way else None
            devices = {host.device: host for host in self._hosts.values()}
            for ready in select.select([self._control.fileno(), *devices], (), (), wait_s)[0]:
                if ready == self._control.fileno():
                    if not self._obey():
                        return
                    continue
                for _ in range(AT_ONCE):
                    try:
                        packet = os.read(ready, 65536)
                    except OSError:
                        break
                    self._carry(devices[ready], packet, time.monotonic())

    def _carry(self, sender: _Host, packet: bytes, now_s: float) -> None:
        routed = self._route(sender, packet, now_s)
        if routed is None:
            return
        receiver, packet = self._hosts[routed[0]], routed[1]
        way = self._ways.get(frozenset((sender.name, receiver.name)), self._usual)
        if way.loss and self._rng.random() < way.loss:
            return
        bits = 8 * len(packet)
        left_at_s = sender.up.passed_at_s(now_s, bits)
        if left_at_s is None:
            return
        there_at_s = receiver.down.passed_at_s(left_at_s + way.one_way_s, bits)
        if there_at_s is None:
            return
        pair = f"{sender.name} {receiver.name}"
        self._carried_bytes[pair] = self._carried_bytes.get(pair, 0) + len(packet)
        self._count += 1
        heapq.heappush(self._under_way, (there_at_s, self._count, receiver.device, packet))

    def _route(self, sender: _Host, packet: bytes, now_s: float) -> tuple[str, bytes] | None:
        """The host that a packet reaches, and the packet as it comes there."""
        if packet[0] >> 4 == 6:
            owner = self._owners.get(packet[24:40])
            return (owner, packet) if owner else None
        target = packet[16:20]
        if sender.router:
            if neighbour := self._inside.get((sender.router, target)):
                return neighbour, packet
            # What still bears an address of another network is lost.
            if self._inside.get((sender.router, packet[12:16])) != sender.name:
                return None
            outwards = self._routers[sender.router].outwards(packet, now_s=now_s)
            if outwards is None:
                return None
            packet = outwards
        elif self._owners.get(packet[12:16]) != sender.name:
            return None
        owner = self._owners.get(target)
        if owner in self._routers and owner != sender.router:
            inwards = self._routers[owner].inwards(packet, now_s=now_s)
            host = self._inside.get((owner, inwards[16:20])) if inwards else None
            return (host, inwards) if host and inwards else None
        return (owner, packet) if owner in self._hosts else None

    def _obey(self) -> bool:
        data, files, _, _ = socket.recv_fds(self._control, 65536, 1)
        if not data:
            return False
        order: dict[str, Any] = json.loads(data)
        match order:
            case {"do": "host", "name": name}:
                os.set_blocking(files[0], False)
                self._hosts[name] = _Host(name, files[0])
            case {"do": "router", "name": name, "public": public, "kind": kind}:
                address = ip_address(public).packed
                self._routers[name] = HomeRouter(address, RouterKind[kind], self._rng.randrange)
                self._owners[address] = name
            case {"do": "place", "name": name, "router": router, "addresses": addresses}:
                self._place(self._hosts[name], router, addresses)
            case {"do": "rates", "name": name, "up": up, "down": down}:
                self._hosts[name].up, self._hosts[name].down = _Line(up), _Line(down)
            case {"do": "way", "between": between, "rtt_s": rtt_s, "loss": loss}:
                way = _Way(rtt_s / 2, loss)
                if between:
                    self._ways[frozenset(between)] = way
                else:
                    self._usual = way
        self._control.send(json.dumps(self._carried_bytes).encode())
        return True

    def _place(self, host: _Host, router: str, addresses: list[str]) -> None:
        host.router = router
        self._owners = {ip: owner for ip, owner in self._owners.items() if owner != host.name}
        self._inside = {place: owner for place, owner in self._inside.items() if owner != host.name}
        for address in map(ip_address, addresses):
            if router and address.version == 4:
                self._inside[router, address.packed] = host.name
            else:
                self._owners[address.packed] = host.name


def main() -> None:
    """Run on the control socket whose descriptor is the first argument."""
    # Without the right to it packets may be late on a busy machine.
    with suppress(OSError):
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))
    Internet(socket.socket(fileno=int(sys.argv[1])), seed=0).run()


if __name__ == "__main__":
    main()
