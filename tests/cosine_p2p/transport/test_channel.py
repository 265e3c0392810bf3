"""Channels: hello, heartbeats, a deadline on silence, bounded queues, an orderly end; and links over them."""

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial

import pytest

from cosine_lab.emulation.memory_transport import MemoryNetwork
from cosine_p2p.transport.base import Stream
from cosine_p2p.transport.channel import (
    FLOOD_S,
    MAX_SENT_AHEAD_BYTES,
    MAX_WAITING_BYTES,
    SILENCE_S,
    Channel,
    StepCounts,
    serve_channel,
    serving_budget,
)
from cosine_p2p.transport.link import Delivery, Links
from cosine_p2p.transport.peer_gate import PeerGate
from cosine_p2p.trust.denied_peers import DeniedPeers
from cosine_protocol.codec import FrameDecoder, Message, decode, encode, encode_frame
from cosine_protocol.discover import STATUS, AskRecords, AskStatus, Status
from cosine_protocol.draft import DRAFT
from cosine_protocol.errors import PeerLost, RemoteProtocolError
from cosine_protocol.stream import VERSION, Error, Hello, Pong
from cosine_protocol.verify import VERIFY, Cancel
from tests.scenes import in_virtual_time

HELLO = Hello(VERSION, (), "test")
OWN_PING = 123_456_789


def framed(*messages: Message) -> bytes:
    return b"".join(encode_frame(encode(message)) for message in messages)


async def dialled(handler: Callable[[Stream], Awaitable[None]], *, one_way_s: float = 0.01) -> Stream:
    network = MemoryNetwork(one_way_s=one_way_s)
    await network.join("server").serve(STATUS, handler)
    return await network.join("client").dial("server", STATUS)


def saying(*messages: Message) -> Callable[[Stream], Awaitable[None]]:
    async def handle(stream: Stream) -> None:
        await stream.write(framed(*messages))

    return handle


async def echoing(stream: Stream) -> None:
    def answer(channel: Channel, message: Message) -> None:
        channel.post(message)

    await serve_channel(stream, STATUS, answer, progress=StepCounts(7, 9))


@pytest.mark.parametrize(
    ("said", "error", "reason"),
    [
        ([AskStatus(3)], RemoteProtocolError, "hello"),
        ([Hello(VERSION + 1, (), "test")], RemoteProtocolError, f"version {VERSION + 1}"),
        ([HELLO, Cancel(1)], RemoteProtocolError, "does not belong"),
        ([HELLO], PeerLost, "nothing was heard"),
    ],
)
@in_virtual_time
async def test_a_breach_or_silence_ends_a_channel(said: list[Message], error: type[Exception], reason: str) -> None:
    async with Channel(await dialled(saying(HELLO, AskStatus(3))), STATUS) as channel:
        assert await channel.receive() == AskStatus(3)
    began_s = asyncio.get_running_loop().time()
    async with Channel(await dialled(saying(*said)), STATUS) as channel:
        with pytest.raises(error, match=reason):
            await channel.receive()
        assert asyncio.get_running_loop().time() - began_s <= SILENCE_S + 0.1


@in_virtual_time
async def test_answers_to_guessed_pings_do_not_make_a_peer_near(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cosine_p2p.transport.channel.draw_ping_number", lambda: OWN_PING)
    # The right number would count.
    for numbers, counts in ((range(64), False), ([OWN_PING], True)):
        stream = await dialled(saying(HELLO, *map(Pong, numbers), AskStatus(3)))
        async with Channel(stream, STATUS) as channel:
            await channel.receive()
            assert (channel.rtt_s is not None) is counts


@in_virtual_time
async def test_a_peer_that_reads_nothing_holds_its_sender_up_and_fills_no_memory() -> None:
    async def read_nothing(stream: Stream) -> None:
        await asyncio.sleep(200)

    network = MemoryNetwork(window_bytes=1 << 16)
    await network.join("server").serve(STATUS, read_nothing)
    stream = await network.join("client").dial("server", STATUS)
    asyncio.get_running_loop().call_later(60, stream.close)
    async with Channel(stream, STATUS) as channel:
        with pytest.raises(PeerLost):
            while True:
                await channel.send(AskRecords(1, "x" * 250))
                assert channel.waiting_bytes < MAX_SENT_AHEAD_BYTES + 2000
                while channel.post(Status(1, bytes(4000), 0, 0, 0.0)):
                    assert channel.waiting_bytes <= MAX_WAITING_BYTES
        assert asyncio.get_running_loop().time() >= 60


@pytest.mark.parametrize("garbage", [encode_frame(b"\xc1"), b"\xff\xff\xff\xff"])
@in_virtual_time
async def test_a_breach_of_the_protocol_is_answered_with_an_error_and_the_end(garbage: bytes) -> None:
    stream = await dialled(echoing)
    await stream.write(garbage)
    decoder, messages = FrameDecoder(), list[Message]()
    while data := await stream.read():
        messages += [decode(frame) for frame in decoder.feed(data)]
    last = messages[-1]
    assert isinstance(last, Error)
    assert (last.number, last.code) == (0, 2)


@in_virtual_time
async def test_a_flooding_peer_loses_its_streams_and_may_return_later(monkeypatch: pytest.MonkeyPatch) -> None:
    """A peer floods over two streams, tries again during the silence, and once after it."""
    frame = framed(Status(1, bytes(4000), 0, 0, 0.0))
    network, budget, ends = MemoryNetwork(), serving_budget(), list[tuple[float, str]]()
    denied, noted, loop = DeniedPeers(), list[str](), asyncio.get_running_loop()
    monkeypatch.setattr(denied, "note_disconnected", noted.append)

    async def handle(stream: Stream) -> None:
        def note(channel: Channel, reason: str) -> None:
            ends.append((loop.time(), reason))

        await serve_channel(stream, STATUS, lambda *_: None, on_end=note, budget=budget)

    await network.join("server", PeerGate(denied=denied)).serve(STATUS, handle)
    peer = network.join("flood")

    async def flood(for_s: float) -> None:
        stream, until_s = await peer.dial("server", STATUS), loop.time() + for_s
        await stream.write(framed(HELLO))
        while loop.time() < until_s:
            await stream.write(frame * 50)
            await asyncio.sleep(0.1)
        stream.close()

    await asyncio.gather(flood(FLOOD_S + 5), flood(FLOOD_S + 5))
    await flood(1.0)
    await asyncio.sleep(60.0)
    await flood(1.0)
    await asyncio.sleep(1.0)
    flooded = ["it sends more than is read of a peer, for too long"] * 3
    assert [reason for _, reason in ends] == [*flooded, "the stream ended"]
    assert FLOOD_S < ends[0][0] < FLOOD_S + 3
    assert noted == ["flood"]


class Server:
    """Answers every `Cancel` with an error for its request, and counts streams."""

    def __init__(self, network: MemoryNetwork) -> None:
        self.network = network
        self.streams = 0
        self.transport = self.network.join("server")

    async def links(self) -> Links:
        for protocol in (VERIFY, DRAFT):
            await self.transport.serve(protocol, partial(self._handle, protocol))
        return Links(self.network.join("client"))

    async def _handle(self, protocol: str, stream: Stream) -> None:
        self.streams += 1
        await serve_channel(stream, protocol, self._answer)

    def _answer(self, channel: Channel, message: Message) -> None:
        if isinstance(message, Cancel):
            channel.post(Error(message.number, 1, f"about {message.number}", None))


@in_virtual_time
async def test_requests_share_one_link_for_each_protocol_and_hear_only_their_own() -> None:
    server = Server(MemoryNetwork(one_way_s=0.01))
    links = await server.links()
    first, second = await asyncio.gather(links.get("server", VERIFY), links.get("server", VERIFY))
    assert first is second is links.alive("server", VERIFY)
    assert await links.get("server", DRAFT) is not first
    heard: dict[int, list[Delivery]] = {1: [], 2: []}
    for number, deliveries in heard.items():
        first.subscribe(number, deliveries.append)
    for number in (1, 2, 1, 3):
        first.post(Cancel(number))
    await asyncio.sleep(0.5)
    await links.close()
    assert server.streams == 2
    for number, times in ((1, 2), (2, 1)):
        told = [delivery.message for delivery in heard[number] if delivery.message]
        assert told == [Error(number, 1, f"about {number}", None)] * times
