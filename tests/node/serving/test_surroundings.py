"""A node finds its place by asking others of its target, and nobody that fails or says nothing stops it."""

import asyncio
from random import Random

import pytest

from cosine_lab.emulation.links import LinkTable
from cosine_lab.emulation.memory_transport import MemoryNetwork, MemoryTransport
from cosine_lab.emulation.virtual_loop import run_virtual
from cosine_node.serving.status_service import StatusService
from cosine_node.serving.surroundings import EAGER_LOOKS, EAGER_PAUSE_S, PAUSE_S, Surroundings
from cosine_p2p.directory.directory import MemoryDirectory
from cosine_p2p.directory.vivaldi import Vivaldi
from cosine_p2p.transport.base import Stream, StreamHandler
from cosine_protocol.errors import PeerLost
from cosine_protocol.messages import NetworkCoordinate
from cosine_protocol.protocols import STATUS
from cosine_protocol.records import NodeRecord, Role
from tests.cosine_p2p.samples import TARGET, identity_of, record_of

OWN, DRAFTER, VERIFIER = identity_of(1), identity_of(2), identity_of(3)


class Fixed(Vivaldi):
    """A peer that is sure to be at one place."""

    def __init__(self, place: NetworkCoordinate) -> None:
        super().__init__(Random(0).random)
        self.place = place

    @property
    def coordinate(self) -> NetworkCoordinate:
        return self.place


class Scene:
    """A node among others, 30 ms and 80 ms away."""

    def __init__(self) -> None:
        one_ways_s = {DRAFTER.peer_id: 0.015, VERIFIER.peer_id: 0.04}
        self.network = MemoryNetwork(routes=LinkTable(seed=0, one_ways_s=one_ways_s).route)
        self.directory = MemoryDirectory()
        self.vivaldi = Vivaldi(Random(1).random)
        self.own = self.network.join(OWN.peer_id)
        self.surroundings = Surroundings(self.own, self.directory, self.vivaldi, target=TARGET, rng=Random(2))
        self.asked = 0
        self._others: list[MemoryTransport] = []

    async def add(self, record: NodeRecord, vivaldi: Vivaldi | None = None) -> None:
        status = StatusService(lambda: (b"", 0, 0), vivaldi=vivaldi)

        async def counted(stream: Stream) -> None:
            self.asked += 1
            await status.handle(stream)

        await self.serve(record, counted)

    async def serve(self, record: NodeRecord, handler: StreamHandler) -> None:
        transport = self.network.join(record.peer_id)
        self._others.append(transport)
        await transport.serve(STATUS, handler)
        await self.directory.announce(record, [TARGET])

    async def run(self, seconds: float) -> None:
        looking = asyncio.ensure_future(self.surroundings.run())
        await asyncio.sleep(seconds)
        looking.cancel()
        await asyncio.gather(looking, return_exceptions=True)

    async def close(self) -> None:
        for transport in (self.own, *self._others):
            await transport.close()


def test_it_comes_to_be_as_far_from_each_as_was_measured_and_does_not_ask_itself() -> None:
    places = (NetworkCoordinate(0, 0, 0, 0, 0), NetworkCoordinate(60_000, 0, 0, 0, 0))

    async def run() -> tuple[list[float], int]:
        scene = Scene()
        await scene.directory.announce(record_of(OWN, now_s=0.0), [TARGET])
        await scene.add(record_of(DRAFTER, now_s=0.0), Fixed(places[0]))
        await scene.add(record_of(VERIFIER, now_s=0.0, role=Role.VERIFIER), Fixed(places[1]))
        await scene.run(EAGER_LOOKS * EAGER_PAUSE_S)
        eager = scene.asked
        await scene.run(1.0)
        await scene.close()
        return [scene.vivaldi.coordinate.rtt_s(place) for place in places], eager

    rtts_s, eager = run_virtual(run())
    assert rtts_s == pytest.approx([0.03, 0.08], abs=0.004)
    assert 0.8 * EAGER_LOOKS < eager <= 1.2 * EAGER_LOOKS


def test_once_it_has_looked_around_it_asks_seldom() -> None:
    async def run() -> int:
        scene = Scene()
        await scene.add(record_of(DRAFTER, now_s=0.0), Fixed(NetworkCoordinate(0, 0, 0, 0, 0)))
        await scene.run(2 * EAGER_LOOKS * EAGER_PAUSE_S)
        await scene.close()
        return scene.asked

    assert run_virtual(run()) < EAGER_LOOKS * (1 + 1.5 * EAGER_PAUSE_S / PAUSE_S)


async def rude(stream: Stream) -> None:
    await stream.write(b"\xff" * 64)
    stream.close()


async def mute(stream: Stream) -> None:
    await asyncio.sleep(1e6)


@pytest.mark.parametrize("handler", [rude, mute])
def test_one_that_breaks_the_protocol_or_says_nothing_is_passed_over(handler: StreamHandler) -> None:
    async def run() -> NetworkCoordinate:
        scene = Scene()
        await scene.serve(record_of(DRAFTER, now_s=0.0), handler)
        await scene.surroundings.look_at(DRAFTER.peer_id)
        await scene.surroundings.look_at(VERIFIER.peer_id)  # nobody is there
        await scene.close()
        return scene.vivaldi.coordinate

    assert run_virtual(run()) == Vivaldi(Random(1).random).coordinate


def test_an_older_node_that_does_not_tell_its_place_moves_nobody() -> None:
    async def run() -> tuple[int, NetworkCoordinate]:
        scene = Scene()
        await scene.add(record_of(DRAFTER, now_s=0.0))
        await scene.surroundings.look_at(DRAFTER.peer_id)
        await scene.close()
        return scene.asked, scene.vivaldi.coordinate

    assert run_virtual(run()) == (1, Vivaldi(Random(1).random).coordinate)


class Down(MemoryDirectory):
    async def find(self, role: Role, target: str, *, wanted: int | None = None) -> list[NodeRecord]:
        raise PeerLost("dht", "down")


def test_a_directory_that_does_not_answer_is_asked_again_later() -> None:
    async def run() -> int:
        scene = Scene()
        there, scene.surroundings._directory = scene.directory, Down()
        await scene.add(record_of(DRAFTER, now_s=0.0), Fixed(NetworkCoordinate(0, 0, 0, 0, 0)))
        looking = asyncio.ensure_future(scene.surroundings.run())
        await asyncio.sleep(3 * EAGER_PAUSE_S)
        assert scene.asked == 0
        scene.surroundings._directory = there
        await asyncio.sleep(3 * EAGER_PAUSE_S)
        looking.cancel()
        await asyncio.gather(looking, return_exceptions=True)
        await scene.close()
        return scene.asked

    assert run_virtual(run()) > 0
