"""One long-lived link per peer and protocol, shared by requests."""

import asyncio

import pytest

from cosine_lab.emulation.memory_transport import MemoryNetwork, MemoryTransport
from cosine_lab.emulation.virtual_loop import run_virtual
from cosine_p2p.transport.base import Stream
from cosine_p2p.transport.channel import FEATURES, Channel, serve_channel
from cosine_p2p.transport.link import Delivery, Links
from cosine_protocol import messages as m
from cosine_protocol.errors import PeerLost
from cosine_protocol.protocols import DRAFT, VERIFY
from tests.scenes import in_virtual_time


class Server:
    """Answers every `Cancel` and `Release` with an error for its request, and counts streams."""

    def __init__(self, network: MemoryNetwork) -> None:
        self.network = network
        self.streams = 0
        self.channels: list[Channel] = []
        self.transport = self.network.join("server")

    async def start(self) -> MemoryTransport:
        await self.transport.serve(VERIFY, lambda stream: self._handle(stream, VERIFY))
        await self.transport.serve(DRAFT, lambda stream: self._handle(stream, DRAFT))
        return self.network.join("client")

    async def _handle(self, stream: Stream, protocol: str) -> None:
        self.streams += 1
        await serve_channel(stream, protocol, self._answer)

    def _answer(self, channel: Channel, message: m.Message) -> None:
        if isinstance(message, m.Cancel | m.Release):
            channel.post(m.Error(message.number, 1, f"about {message.number}", None))


def test_requests_share_one_link_and_hear_only_their_own() -> None:
    async def run() -> tuple[int, list[Delivery], list[Delivery]]:
        server = Server(MemoryNetwork(one_way_s=0.01))
        links = Links(await server.start())
        first, second = await asyncio.gather(links.get("server", VERIFY), links.get("server", VERIFY))
        assert first is second is links.alive("server", VERIFY)
        ones: list[Delivery] = []
        twos: list[Delivery] = []
        first.subscribe(1, ones.append)
        first.subscribe(2, twos.append)
        for number in (1, 2, 1, 3):
            first.post(m.Cancel(number))
        await asyncio.sleep(0.5)
        await links.close()
        return server.streams, ones, twos

    streams, ones, twos = run_virtual(run())
    assert streams == 1
    assert [d.message for d in ones if d.message] == [m.Error(1, 1, "about 1", None)] * 2
    assert [d.message for d in twos if d.message] == [m.Error(2, 1, "about 2", None)]


def test_another_protocol_is_another_link() -> None:
    async def run() -> int:
        server = Server(MemoryNetwork())
        links = Links(await server.start())
        assert await links.get("server", VERIFY) is not await links.get("server", DRAFT)
        await asyncio.sleep(0)
        await links.close()
        return server.streams

    assert run_virtual(run()) == 2


@in_virtual_time
async def test_features_are_told_once_the_peer_has_named_its_own() -> None:
    network = MemoryNetwork(one_way_s=0.01)
    server = Server(network)
    links = Links(await server.start())
    link = await links.get("server", DRAFT)
    assert link.features is None
    assert await link.named_features() == await link.named_features() == link.features == set(FEATURES)
    await links.close()


@in_virtual_time
async def test_a_peer_that_leaves_before_it_has_named_any_is_lost() -> None:
    network = MemoryNetwork(one_way_s=0.01)
    mute = network.join("mute")

    async def handle(stream: Stream) -> None:
        await asyncio.sleep(0.1)
        stream.close()

    await mute.serve(DRAFT, handle)
    links = Links(network.join("client"))
    link = await links.get("mute", DRAFT)
    with pytest.raises(PeerLost):
        await link.named_features()
    await links.close()


@in_virtual_time
async def test_sinks_are_told_of_a_loss_and_the_next_get_dials_again() -> None:
    network = MemoryNetwork(one_way_s=0.01)
    server = Server(network)
    links = Links(await server.start())
    link = await links.get("server", VERIFY)
    told: list[Delivery] = []
    gone: list[Delivery] = []
    link.subscribe(1, told.append)
    link.subscribe(2, gone.append)
    link.unsubscribe(2)
    server.transport.vanish()
    await asyncio.sleep(0.5)
    assert [(d.message, d.lost) for d in told] == [(None, "the stream ended")]
    assert gone == []
    assert links.alive("server", VERIFY) is None
    with pytest.raises(PeerLost, match="no such peer"):
        await links.get("server", VERIFY)
    network.transports["server"] = server.transport
    again = await links.get("server", VERIFY)
    assert again is not link
    assert again.is_alive
    await links.close()


@pytest.mark.parametrize("message", [m.Error(0, 2, "you broke it", None), m.Final(b"\xc1", bytes(64))])
def test_a_peer_that_breaks_the_protocol_loses_its_link(message: m.Message) -> None:
    async def run() -> list[Delivery]:
        network = MemoryNetwork()

        async def handle(stream: Stream) -> None:
            async with Channel(stream, VERIFY) as channel:
                channel.post(message)
                await asyncio.sleep(1)

        await network.join("server").serve(VERIFY, handle)
        links = Links(network.join("client"))
        told: list[Delivery] = []
        (await links.get("server", VERIFY)).subscribe(1, told.append)
        await asyncio.sleep(2)
        await links.close()
        return told

    [only] = run_virtual(run())
    assert only.lost is not None
    assert only.lost.startswith("it broke the protocol")
