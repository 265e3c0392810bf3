"""The internet of a laboratory: a process that carries packets between the TUN devices of hosts.

It is told by JSON messages over a socket what `Laboratory` wants: hosts with their device and addresses, home
routers, and the way between hosts. It runs at real-time priority where it may, so that a busy machine makes hosts
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
from dataclasses import dataclass
from ipaddress import ip_address
from typing import Any, Final

from tests.network.home_router import HomeRouter, RouterKind

AT_ONCE: Final = 64
"""Packets of one host before the others have their turn."""


@dataclass(slots=True)
class _Host:
    name: str
    device: int
    router: str = ""


class Internet:
    """Carries packets until its control socket closes."""

    def __init__(self, control: socket.socket, *, seed: int) -> None:
        self._control = control
        self._rng = random.Random(seed)
        self._hosts: dict[str, _Host] = {}
        self._routers: dict[str, HomeRouter] = {}
        self._owners: dict[bytes, str] = {}  # of public addresses: a host or a router
        self._inside: dict[tuple[str, bytes], str] = {}  # of private addresses behind a router
        self._one_way_s = 0.0
        self._loss = 0.0
        self._under_way: list[tuple[float, int, int, bytes]] = []
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
        if packet[0] >> 4 == 4 and packet[16] >> 4 == 14:
            # Multicast stays in a home.
            homes = [name for (router, _), name in self._inside.items() if router == sender.router]
            arrivals = [(name, packet) for name in homes if name != sender.name]
        else:
            routed = self._route(sender, packet, now_s)
            arrivals = [routed] if routed else []
        for name, arriving in arrivals:
            if self._rng.random() >= self._loss:
                self._count += 1
                device, there_at_s = self._hosts[name].device, now_s + self._one_way_s
                heapq.heappush(self._under_way, (there_at_s, self._count, device, arriving))

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
            case {"do": "way", "rtt_s": rtt_s, "loss": loss}:
                self._one_way_s, self._loss = rtt_s / 2, loss
        self._control.send(b"done")
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
