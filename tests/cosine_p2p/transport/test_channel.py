"""A channel: hello first, heartbeats, a deadline on silence, bounded queues, an orderly end."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from cosine_lab.emulation.memory_transport import MemoryNetwork
from cosine_lab.emulation.virtual_loop import run_virtual
from cosine_p2p.transport.base import Stream
from cosine_p2p.transport.channel import (
    FLOOD_S,
    HEARTBEAT_S,
    MAX_SENT_AHEAD_BYTES,
    MAX_WAITING_BYTES,
    PING_NUMBERS,
    READ_BURST,
    READ_RATE,
    SILENCE_S,
    Channel,
    StepCounts,
    draw_ping_number,
    read_budget,
    serve_channel,
    serving_budget,
)
from cosine_p2p.transport.peer_gate import PeerGate
from cosine_p2p.trust.denied_peers import DeniedPeers
from cosine_protocol import messages as m
from cosine_protocol.codec import FrameDecoder, decode, encode, encode_frame
from cosine_protocol.errors import PeerLost, RemoteProtocolError
from cosine_protocol.protocols import STATUS, VERSION
from tests.scenes import in_virtual_time

HELLO = m.Hello(VERSION, (), "test")
OWN_PING = 123_456_789


async def dialled(handler: Callable[[Stream], Awaitable[None]], *, one_way_s: float = 0.01) -> Stream:
    network = MemoryNetwork(one_way_s=one_way_s)
    await network.join("server").serve(STATUS, handler)
    return await network.join("client").dial("server", STATUS)


def saying(*messages: m.Message) -> Callable[[Stream], Awaitable[None]]:
    """A peer that says this and nothing more."""

    async def handle(stream: Stream) -> None:
        for message in messages:
            await stream.write(encode_frame(encode(message)))

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


def test_messages_follow_the_hello() -> None:
    assert receive_from(HELLO, m.AskStatus(3)) == m.AskStatus(3)


def test_nothing_may_come_before_the_hello() -> None:
    with pytest.raises(RemoteProtocolError, match="hello"):
        receive_from(m.AskStatus(3))


def test_another_version_is_refused() -> None:
    with pytest.raises(RemoteProtocolError, match=f"version {VERSION + 1}"):
        receive_from(m.Hello(VERSION + 1, (), "test"))


def test_a_message_of_another_protocol_is_refused() -> None:
    with pytest.raises(RemoteProtocolError, match="does not belong"):
        receive_from(HELLO, m.Cancel(1))


def test_silence_is_a_loss_in_time() -> None:
    async def run() -> float:
        async with Channel(await dialled(saying(HELLO)), STATUS) as channel:
            with pytest.raises(PeerLost, match="nothing was heard"):
                await channel.receive()
            return asyncio.get_running_loop().time()

    assert run_virtual(run()) <= SILENCE_S + 0.1


def test_an_idle_pair_stays_alive_and_measures_its_round_trip() -> None:
    async def run() -> Channel:
        async with Channel(await dialled(echoing, one_way_s=0.04), STATUS) as channel:
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(10 * SILENCE_S):
                    await channel.receive()
        return channel

    channel = run_virtual(run())
    assert channel.rtt_s == pytest.approx(0.08, abs=1e-6)
    assert channel.remote_progress == StepCounts(7, 9)
    assert channel.bytes_sent > 0
    assert channel.bytes_received > 0


@in_virtual_time
async def test_the_distance_is_known_once_the_first_message_is_answered() -> None:
    async with Channel(await dialled(echoing, one_way_s=0.1), STATUS) as channel:
        channel.post(m.AskStatus(1))
        await channel.receive()
        assert channel.rtt_s == pytest.approx(0.2)


def test_who_answers_pings_before_they_come_does_not_seem_near() -> None:
    guesses = [m.Pong(number) for number in range(64)]

    async def run(*pongs: m.Pong) -> float | None:
        stream = await dialled(saying(HELLO, *pongs, m.AskStatus(3)))
        async with Channel(stream, STATUS, draw=lambda: OWN_PING) as channel:
            await channel.receive()
            return channel.rtt_s

    assert run_virtual(run(*guesses)) is None
    # The right number would have counted.
    assert run_virtual(run(m.Pong(OWN_PING))) is not None


def test_the_numbers_of_pings_cannot_be_foreseen() -> None:
    drawn = [draw_ping_number() for _ in range(64)]
    assert len(set(drawn)) > 60
    assert all(number in PING_NUMBERS for number in drawn)
    assert len({len(encode(m.Pong(number))) for number in (*drawn, PING_NUMBERS[0], PING_NUMBERS[-1])}) == 1


def test_a_ping_is_answered_at_once() -> None:
    async def run() -> tuple[m.Message, float]:
        stream = await dialled(echoing, one_way_s=0.0)
        await stream.write(encode_frame(encode(HELLO)) + encode_frame(encode(m.Ping(41, 0, 0))))
        decoder = FrameDecoder()
        while True:
            for frame in decoder.feed(await stream.read()):
                if isinstance(message := decode(frame), m.Pong):
                    return message, asyncio.get_running_loop().time()

    message, at_s = run_virtual(run())
    assert message == m.Pong(41)
    assert at_s < HEARTBEAT_S


class PlayedDenied(DeniedPeers):
    """Denies nobody, and keeps who was counted."""

    def __init__(self) -> None:
        super().__init__()
        self.noted: list[str] = []

    def note_disconnected(self, peer_id: str) -> None:
        self.noted.append(peer_id)


class ClosedThroat:
    """A stream whose peer never reads."""

    peer_id = "slow"

    async def read(self) -> bytes:
        await asyncio.Event().wait()
        return b""

    async def write(self, data: bytes) -> None:
        await asyncio.Event().wait()

    def close(self) -> None:
        return

    def note_flood(self) -> None:
        return


@in_virtual_time
async def test_a_slow_reader_makes_post_refuse_and_nothing_grows() -> None:
    async with Channel(ClosedThroat(), STATUS) as channel:
        big = m.Status(1, bytes(4000), 0, 0, 0.0)
        sent = 0
        while channel.post(big):
            sent += 1
            assert sent < 2 * MAX_WAITING_BYTES // 4000
        await asyncio.sleep(60)
        assert not channel.post(big)
        assert channel.waiting_bytes <= MAX_WAITING_BYTES


@pytest.mark.parametrize(
    "garbage", [encode_frame(b"\xc1"), b"\xff\xff\xff\xff", encode_frame(encode(HELLO)) + encode_frame(b"\x90")]
)
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


def test_the_reason_of_an_end_is_told() -> None:
    async def run() -> str:
        reasons: asyncio.Future[str] = asyncio.get_running_loop().create_future()

        async def handle(stream: Stream) -> None:
            await serve_channel(
                stream, STATUS, lambda *_: None, on_end=lambda channel, reason: reasons.set_result(reason)
            )

        async with Channel(await dialled(handle), STATUS):
            await asyncio.sleep(0.1)
        return await reasons

    assert run_virtual(run()) == "the stream ended"


def test_what_was_posted_last_still_leaves() -> None:
    async def run() -> list[m.Message]:
        heard: list[m.Message] = []

        async def handle(stream: Stream) -> None:
            await serve_channel(stream, STATUS, lambda channel, message: heard.append(message))

        async with Channel(await dialled(handle), STATUS) as channel:
            channel.post(m.AskStatus(9))
        await asyncio.sleep(1)
        return heard

    assert run_virtual(run()) == [m.AskStatus(9)]


def test_the_streams_of_one_peer_are_read_as_fast_as_one_and_others_beside() -> None:
    """Two peers send without a pause, one of them over four streams: of each as much is read."""

    async def run() -> dict[str, int]:
        network, budget, heard = MemoryNetwork(), read_budget(), {"one": 0, "four": 0}

        def count(channel: Channel, message: m.Message) -> None:
            heard[channel.peer_id] += 1

        async def handle(stream: Stream) -> None:
            await serve_channel(stream, STATUS, count, budget=budget)

        await network.join("server").serve(STATUS, handle)
        for name, streams in (("one", 1), ("four", 4)):
            transport = network.join(name)
            for _ in range(streams):
                stream = await transport.dial("server", STATUS)
                await stream.write(encode_frame(encode(HELLO)))
                await stream.write(encode_frame(encode(m.AskStatus(3))) * 50_000)
        await asyncio.sleep(2.0)
        return heard

    for count in run_virtual(run()).values():
        assert count == pytest.approx(READ_BURST + 2.0 * READ_RATE, rel=0.02)


def test_who_stays_at_the_limit_loses_its_streams_is_counted_once_and_may_come_back_after_a_minute() -> None:
    """A peer floods over two streams, tries again during the silence, and once after it."""
    padding = m.Status(1, bytes(4000), 0, 0, 0.0)
    frame = encode_frame(encode(padding))

    async def run() -> tuple[list[float], list[str], PlayedDenied]:
        network, budget, reasons, ends = MemoryNetwork(), serving_budget(), list[str](), list[float]()
        denied = PlayedDenied()
        loop = asyncio.get_running_loop()

        async def handle(stream: Stream) -> None:
            def note(channel: Channel, reason: str) -> None:
                reasons.append(reason)
                ends.append(loop.time())

            await serve_channel(stream, STATUS, lambda *_: None, on_end=note, budget=budget)

        await network.join("server", PeerGate(denied=denied)).serve(STATUS, handle)
        peer = network.join("flood")

        async def flood(for_s: float) -> None:
            stream, until_s = await peer.dial("server", STATUS), loop.time() + for_s
            await stream.write(encode_frame(encode(HELLO)))
            while loop.time() < until_s:
                await stream.write(frame * 50)
                await asyncio.sleep(0.1)
            stream.close()

        await asyncio.gather(flood(FLOOD_S + 5), flood(FLOOD_S + 5))
        await flood(1.0)
        await asyncio.sleep(60.0)
        await flood(1.0)
        await asyncio.sleep(1.0)
        return ends, reasons, denied

    ends, reasons, denied = run_virtual(run())
    assert reasons == ["it sends more than is read of a peer, for too long"] * 3 + ["the stream ended"]
    assert FLOOD_S < ends[0] < FLOOD_S + 3
    assert denied.noted == ["flood"]


@in_virtual_time
async def test_who_sends_waits_for_a_slow_reader_and_hears_of_a_broken_stream() -> None:
    async def read_nothing(stream: Stream) -> None:
        await asyncio.sleep(200)

    network = MemoryNetwork(window_bytes=1 << 16)
    await network.join("server").serve(STATUS, read_nothing)
    stream = await network.join("client").dial("server", STATUS)
    asyncio.get_running_loop().call_later(60, stream.close)
    async with Channel(stream, STATUS) as channel:
        sent = 0
        with pytest.raises(PeerLost):
            while True:
                await channel.send(m.AskRecords(1, "x" * 250))
                sent += 1
                assert channel.waiting_bytes < MAX_SENT_AHEAD_BYTES + 2000
        assert sent * 250 < 2 * MAX_SENT_AHEAD_BYTES
        assert asyncio.get_running_loop().time() >= 60
