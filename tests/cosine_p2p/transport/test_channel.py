"""Channels: hello first, heartbeats, a deadline on silence, bounded queues, an orderly end; and links over them."""

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial

import pytest

from cosine_lab.emulation.memory_transport import MemoryNetwork
from cosine_lab.emulation.virtual_loop import run_virtual
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
from cosine_protocol import messages as m
from cosine_protocol.codec import FrameDecoder, decode, encode, encode_frame
from cosine_protocol.errors import PeerLost, RemoteProtocolError
from cosine_protocol.protocols import DRAFT, STATUS, VERIFY, VERSION
from tests.scenes import in_virtual_time

HELLO = m.Hello(VERSION, (), "test")
OWN_PING = 123_456_789


def framed(*messages: m.Message) -> bytes:
    return b"".join(encode_frame(encode(message)) for message in messages)


async def dialled(handler: Callable[[Stream], Awaitable[None]], *, one_way_s: float = 0.01) -> Stream:
    network = MemoryNetwork(one_way_s=one_way_s)
    await network.join("server").serve(STATUS, handler)
    return await network.join("client").dial("server", STATUS)


def saying(*messages: m.Message) -> Callable[[Stream], Awaitable[None]]:
    """A peer that says this and nothing more."""

    async def handle(stream: Stream) -> None:
        await stream.write(framed(*messages))

    return handle


async def echoing(stream: Stream) -> None:
    def answer(channel: Channel, message: m.Message) -> None:
        channel.post(message)

    await serve_channel(stream, STATUS, answer, progress=StepCounts(7, 9))


def receive_from(*messages: m.Message) -> m.Message:
    async def run() -> m.Message:
        async with Channel(await dialled(saying(*messages)), STATUS) as channel:
            return await channel.receive()

    return run_virtual(run())


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        ([m.AskStatus(3)], "hello"),
        ([m.Hello(VERSION + 1, (), "test")], f"version {VERSION + 1}"),
        ([HELLO, m.Cancel(1)], "does not belong"),
    ],
)
def test_messages_of_the_protocol_follow_the_hello_and_no_others(said: list[m.Message], reason: str) -> None:
    assert receive_from(HELLO, m.AskStatus(3)) == m.AskStatus(3)
    with pytest.raises(RemoteProtocolError, match=reason):
        receive_from(*said)


@in_virtual_time
async def test_silence_is_a_loss_in_time() -> None:
    async with Channel(await dialled(saying(HELLO)), STATUS) as channel:
        with pytest.raises(PeerLost, match="nothing was heard"):
            await channel.receive()
        assert asyncio.get_running_loop().time() <= SILENCE_S + 0.1


@in_virtual_time
async def test_an_idle_pair_stays_alive_and_measures_its_round_trip_from_the_first_answer_on() -> None:
    async with Channel(await dialled(echoing, one_way_s=0.04), STATUS) as channel:
        channel.post(m.AskStatus(1))
        await channel.receive()
        assert channel.rtt_s == pytest.approx(0.08)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(10 * SILENCE_S):
                await channel.receive()
        assert channel.rtt_s == pytest.approx(0.08, abs=1e-6)
        assert channel.remote_progress == StepCounts(7, 9)
        assert channel.bytes_sent > 0 and channel.bytes_received > 0


def test_who_answers_pings_before_they_come_does_not_seem_near(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cosine_p2p.transport.channel.draw_ping_number", lambda: OWN_PING)

    async def run(*pongs: m.Pong) -> float | None:
        stream = await dialled(saying(HELLO, *pongs, m.AskStatus(3)))
        async with Channel(stream, STATUS) as channel:
            await channel.receive()
            return channel.rtt_s

    assert run_virtual(run(*(m.Pong(number) for number in range(64)))) is None
    # The right number would have counted.
    assert run_virtual(run(m.Pong(OWN_PING))) is not None


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
                await channel.send(m.AskRecords(1, "x" * 250))
                assert channel.waiting_bytes < MAX_SENT_AHEAD_BYTES + 2000
                while channel.post(m.Status(1, bytes(4000), 0, 0, 0.0)):
                    assert channel.waiting_bytes <= MAX_WAITING_BYTES
        assert asyncio.get_running_loop().time() >= 60


@pytest.mark.parametrize("garbage", [encode_frame(b"\xc1"), b"\xff\xff\xff\xff"])
def test_a_broken_protocol_is_answered_with_an_error_and_the_end(garbage: bytes) -> None:
    async def run() -> list[m.Message]:
        stream = await dialled(echoing)
        await stream.write(garbage)
        decoder, messages = FrameDecoder(), []
        while data := await stream.read():
            messages += [decode(frame) for frame in decoder.feed(data)]
        return messages

    last = run_virtual(run())[-1]
    assert isinstance(last, m.Error)
    assert (last.number, last.code) == (0, 2)


class PlayedDenied(DeniedPeers):
    """Denies nobody, and keeps who was counted."""

    def __init__(self) -> None:
        super().__init__()
        self.noted: list[str] = []

    def note_disconnected(self, peer_id: str) -> None:
        self.noted.append(peer_id)


@in_virtual_time
async def test_who_stays_at_the_limit_loses_its_streams_is_counted_once_and_may_come_back_after_a_minute() -> None:
    """A peer floods over two streams, tries again during the silence, and once after it."""
    frame = framed(m.Status(1, bytes(4000), 0, 0, 0.0))
    network, budget, ends = MemoryNetwork(), serving_budget(), list[tuple[float, str]]()
    denied, loop = PlayedDenied(), asyncio.get_running_loop()

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
    assert denied.noted == ["flood"]


class Server:
    """Answers every `Cancel` and `Release` with an error for its request, and counts streams."""

    def __init__(self, network: MemoryNetwork) -> None:
        self.network = network
        self.streams = 0
        self.transport = self.network.join("server")

    async def links(self) -> Links:
        """Those of a client to this server."""
        for protocol in (VERIFY, DRAFT):
            await self.transport.serve(protocol, partial(self._handle, protocol))
        return Links(self.network.join("client"))

    async def _handle(self, protocol: str, stream: Stream) -> None:
        self.streams += 1
        await serve_channel(stream, protocol, self._answer)

    def _answer(self, channel: Channel, message: m.Message) -> None:
        if isinstance(message, m.Cancel | m.Release):
            channel.post(m.Error(message.number, 1, f"about {message.number}", None))


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
        first.post(m.Cancel(number))
    await asyncio.sleep(0.5)
    await links.close()
    assert server.streams == 2
    for number, times in ((1, 2), (2, 1)):
        told = [delivery.message for delivery in heard[number] if delivery.message]
        assert told == [m.Error(number, 1, f"about {number}", None)] * times


@in_virtual_time
async def test_sinks_are_told_of_a_loss_and_the_next_get_dials_again() -> None:
    network = MemoryNetwork(one_way_s=0.01)
    server = Server(network)
    links = await server.links()
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
