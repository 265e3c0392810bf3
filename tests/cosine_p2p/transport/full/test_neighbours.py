"""Peers behind one router exchange private addresses; a stranger learns none and can cause few dials."""

import asyncio
from collections.abc import Sequence
from typing import Any, Final

import pytest
from multiaddr import Multiaddr

from cosine_lab.emulation.virtual_loop import run_virtual
from cosine_p2p.transport.addresses import MAX_TRIES, TRIES_WINDOW_S
from cosine_p2p.transport.base import Stream
from cosine_p2p.transport.full import neighbours
from cosine_p2p.transport.full.neighbours import MAX_PLACES, Neighbours
from cosine_p2p.transport.full.questions import field, message
from tests.cosine_p2p.samples import identity_of
from tests.cosine_p2p.transport.full.test_questions import Answering
from tests.scenes import in_virtual_time

HOME, ELSEWHERE = "203.0.114.1", "198.52.101.1"
PEER, RELAY = (identity_of(number).peer_id for number in (1, 2))
PLACE: Final = "/ip4/192.168.1.7/tcp/4001"
LOOPBACK: Final = "/ip4/127.0.0.1/tcp/4001"


class Machine:
    """A machine that a relay sees at `host` and that listens at some addresses; also its p2pd."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, host: str = HOME) -> None:
        self.host = host
        self.own = [LOOPBACK, PLACE, f"/ip4/{HOME}/tcp/4001", "/ip4/192.168.1.7/udp/4001/quic-v1"]
        self.answer = b""
        self.dialled: list[Sequence[str]] = []
        self.listens = True
        self.neighbours = Neighbours(daemon=self.daemon, ask_peer=self.identify, dial=self.dial)
        monkeypatch.setattr(neighbours, "is_dialable", self.is_dialable)

    async def daemon(self) -> Any:
        return self

    async def ways(self) -> dict[str, tuple[str, ...]]:
        return {RELAY: ("/ip4/198.51.100.9/tcp/4001", "/ip4/45.11.0.1/tcp/4001")}

    async def visible_maddrs(self) -> tuple[str, ...]:
        return tuple(f"{maddr}/p2p/{PEER}" for maddr in self.own)

    async def identify(self, peer_id: str, protocol: str) -> Stream:
        return Answering(message(field(4, Multiaddr(f"/ip4/{self.host}/tcp/40001").to_bytes())))

    async def dial(self, peer_id: str, protocol: str) -> Stream:
        return Answering(message(self.answer))

    async def is_dialable(self, maddrs: Sequence[str]) -> bool:
        self.dialled.append(maddrs)
        return self.listens

    async def told_to(self, question: bytes) -> bytes:
        stream = Answering(message(question))
        await self.neighbours.answer(stream)
        return stream.asked


def places(*maddrs: str) -> bytes:
    return b"".join(field(2, Multiaddr(maddr).to_bytes()) for maddr in maddrs)


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    return Machine(monkeypatch)


@pytest.mark.parametrize(
    ("question", "told"),
    [
        (field(1, HOME.encode()), message(places(PLACE))),
        (field(1, ELSEWHERE.encode()), message(b"")),
        (b"\xff\xff", b""),
    ],
    ids=["near", "elsewhere", "malformed"],
)
def test_only_neighbours_are_told_private_addresses(machine: Machine, question: bytes, told: bytes) -> None:
    assert run_virtual(machine.told_to(question)) == told


@pytest.mark.parametrize(
    ("answer", "found"),
    [
        (places(PLACE), (PLACE,)),
        (b"\xff\xff", ()),
        # This machine, a service of a router, a machine of the internet.
        (places(LOOPBACK, "/ip4/192.168.1.1/tcp/80", f"/ip4/{ELSEWHERE}/tcp/4001"), ()),
        (
            places(*(f"/ip4/10.0.0.{number}/tcp/4001" for number in range(9))),
            tuple(f"/ip4/10.0.0.{number}/tcp/4001" for number in range(MAX_PLACES)),
        ),
    ],
    ids=["one", "malformed", "no private ones", "many"],
)
def test_neighbours_meet_at_private_addresses(machine: Machine, answer: bytes, found: tuple[str, ...]) -> None:
    machine.answer = answer
    assert run_virtual(machine.neighbours.private_maddrs_of(PEER)) == found
    assert machine.dialled == ([found] if found else [])


@in_virtual_time
async def test_any_number_of_liars_can_cause_few_dials(machine: Machine) -> None:
    machine.answer, machine.listens = places(PLACE), False
    for number in range(2 * MAX_TRIES):
        await machine.neighbours.private_maddrs_of(identity_of(number).peer_id)
    assert len(machine.dialled) == MAX_TRIES
    await asyncio.sleep(TRIES_WINDOW_S)
    await machine.neighbours.private_maddrs_of(identity_of(99).peer_id)
    assert len(machine.dialled) == MAX_TRIES + 1
