"""The status of a node, and its coordinate from measurements of others."""

import asyncio
from random import Random

import pytest

from cosine_lab.emulation.links import LinkTable
from cosine_lab.emulation.memory_directory import MemoryDirectory
from cosine_lab.emulation.memory_transport import MemoryNetwork, MemoryTransport
from cosine_lab.emulation.virtual_loop import run_virtual
from cosine_node.serving.status_service import StatusService
from cosine_node.serving.surroundings import EAGER_LOOKS, EAGER_PAUSE_S, PAUSE_S, Surroundings
from cosine_p2p.directory.vivaldi import Vivaldi
from cosine_p2p.transport.base import Stream, StreamHandler
from cosine_protocol.codec import Message
from cosine_protocol.discover import STATUS, AskStatus, Status
from cosine_protocol.errors import ErrorCode
from cosine_protocol.records import NetworkCoordinate, NodeRecord, Role
from cosine_protocol.stream import Error
from tests.cosine_p2p.samples import TARGET, identity_of, record_of
from tests.node.peers import answers_of
from tests.scenes import in_virtual_time


async def asked(*questions: Message, after_s: float = 0.0, vivaldi: Vivaldi | None = None) -> list[Message]:
    counts = iter(range(100))
    service = StatusService(lambda: (b"record", 3, next(counts)), vivaldi=vivaldi)
    await asyncio.sleep(after_s)
    return await answers_of(service.handle, STATUS, *questions)


def test_each_request_is_answered_and_an_error_does_not_end_the_stream() -> None:
    vivaldi = Vivaldi(Random(0).random)
    questions = (AskStatus(4), Status(1, b"", 0, 0, 0.0), AskStatus(5))
    first, error, second = run_virtual(asked(*questions, after_s=12.5, vivaldi=vivaldi))
    assert isinstance(first, Status) and isinstance(second, Status)
    assert (first.number, first.record, first.requests, first.steps) == (4, b"record", 3, 0)
    assert (second.number, second.steps) == (5, 1)
    assert first.uptime_s == pytest.approx(12.5)
    assert first.coordinate == vivaldi.coordinate
    assert isinstance(error, Error) and error.code == ErrorCode.MALFORMED
    (silent,) = run_virtual(asked(AskStatus(1)))
    assert isinstance(silent, Status) and silent.coordinate is None


OWN, DRAFTER, VERIFIER, OLD = map(identity_of, (1, 2, 3, 4))


class Fixed(Vivaldi):
    """A peer with a fixed coordinate."""

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
        self.surroundings = Surroundings(self.own, self.directory, self.vivaldi, rng=Random(2))
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
        looking = asyncio.ensure_future(self.surroundings.run(TARGET))
        await asyncio.sleep(seconds)
        looking.cancel()
        await asyncio.gather(looking, return_exceptions=True)

    async def close(self) -> None:
        for transport in (self.own, *self._others):
            await transport.close()


@in_virtual_time
async def test_the_coordinate_converges_to_the_measured_distances() -> None:
    places = (NetworkCoordinate(0, 0, 0, 0, 0), NetworkCoordinate(60_000, 0, 0, 0, 0))
    scene = Scene()
    # A node does not measure itself.
    await scene.directory.announce(record_of(OWN, now_s=0.0), [TARGET])
    await scene.add(record_of(DRAFTER, now_s=0.0), Fixed(places[0]))
    await scene.add(record_of(VERIFIER, now_s=0.0, role=Role.VERIFIER), Fixed(places[1]))
    await scene.run(EAGER_LOOKS * EAGER_PAUSE_S)
    rtts_s, eager = [scene.vivaldi.coordinate.rtt_s(place) for place in places], scene.asked
    assert rtts_s == pytest.approx([0.03, 0.08], abs=0.004)
    assert 0.8 * EAGER_LOOKS < eager <= 1.2 * EAGER_LOOKS
    # After the first measurements it asks rarely.
    await scene.run(2 * EAGER_LOOKS * EAGER_PAUSE_S)
    assert scene.asked - eager < EAGER_LOOKS * (1 + 1.5 * EAGER_PAUSE_S / PAUSE_S)
    await scene.close()


async def rude(stream: Stream) -> None:
    await stream.write(b"\xff" * 64)
    stream.close()


async def mute(stream: Stream) -> None:
    await asyncio.sleep(1e6)


@pytest.mark.parametrize("handler", [rude, mute])
@in_virtual_time
async def test_peers_without_a_valid_coordinate_are_skipped(handler: StreamHandler) -> None:
    scene = Scene()
    await scene.serve(record_of(DRAFTER, now_s=0.0), handler)
    await scene.add(record_of(OLD, now_s=0.0))
    for identity in (DRAFTER, OLD, VERIFIER):  # no verifier is there
        await scene.surroundings.look_at(identity.peer_id)
    assert scene.asked == 1
    await scene.close()
    assert scene.vivaldi.coordinate == Vivaldi(Random(1).random).coordinate
