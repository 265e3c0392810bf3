"""The properties of streams that every transport has (`cosine_p2p/transport/base.py`)."""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any, Final

import pytest

from cosine_lab.emulation.delayed_transport import DelayedTransport
from cosine_lab.emulation.memory_transport import MemoryNetwork
from cosine_lab.emulation.round_trips import LIGHT
from cosine_p2p.transport.base import Stream, StreamHandler, Transport
from cosine_protocol.identity import Identity
from tests.cosine_p2p.transport.full_nodes import echo, lost, swarm

ECHO: Final = "/test/echo"
WHO: Final = "/test/who"
HOLD: Final = "/test/hold"
ONE_WAY_S: Final = 0.02
OURS: Final = Identity.from_seed(b"\x01" * 32)
NOBODY: Final = Identity.from_seed(b"\x09" * 32).peer_id


@dataclass(frozen=True, slots=True)
class Joined:
    """Our transport, and a peer at `address` that serves the protocols below, at least `one_way_s` away.

    `is_bounded`: writes wait for a slow peer. `frees_writers`: closing the stream ends them.
    """

    ours: Transport
    peer_id: str
    one_way_s: float = 0.0
    address: str = ""
    is_bounded: bool = True
    frees_writers: bool = True


async def who(stream: Stream) -> None:
    await stream.write(stream.peer_id.encode())
    stream.close()


async def hold(_: Stream) -> None:
    await asyncio.sleep(3600)


HANDLERS: Final[dict[str, StreamHandler]] = {ECHO: echo, WHO: who, HOLD: hold}


@asynccontextmanager
async def memory() -> AsyncIterator[Joined]:
    network = MemoryNetwork(window_bytes=1 << 20)
    ours, theirs = network.join(OURS.peer_id), network.join("peer")
    for protocol, handler in HANDLERS.items():
        await theirs.serve(protocol, handler)
    network.addresses["peer"] = "/ip4/192.0.2.1/tcp/4001"
    yield Joined(ours, theirs.peer_id, address="/ip4/192.0.2.1", frees_writers=False)
    await ours.close()
    await theirs.close()


@asynccontextmanager
async def delayed() -> AsyncIterator[Joined]:
    async with memory() as near:
        far = DelayedTransport(near.ours, ONE_WAY_S, round_trips=LIGHT)
        yield Joined(far, near.peer_id, ONE_WAY_S, address=near.address, is_bounded=False)


@asynccontextmanager
async def full() -> AsyncIterator[Joined]:
    async with swarm() as made:
        theirs = await made.node()
        for protocol, handler in HANDLERS.items():
            await theirs.serve(protocol, handler)
        yield Joined(await made.node(client_mode=True), theirs.peer_id, address="/ip4/127.0.0.1/tcp/")


@asynccontextmanager
async def light() -> AsyncIterator[Joined]:
    from cosine_p2p.transport.light.light import LightConfig, LightTransport
    from tests.cosine_p2p.transport.libp2p_server import serving

    async with serving(b"\x02" * 32) as server:
        ours = await LightTransport.start(LightConfig(identity=OURS, initial_peers=(server.maddr,)))
        try:
            yield Joined(ours, server.peer_id, address="/ip4/127.0.0.1/tcp/")
        finally:
            await ours.close()


def needs(library: str) -> list[pytest.MarkDecorator]:
    return [pytest.mark.network, pytest.mark.skipif(find_spec(library) is None, reason=f"needs {library}")]


Scene = Callable[[Joined], Coroutine[Any, Any, None]]


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(memory, id="memory"),
        pytest.param(delayed, id="delayed"),
        pytest.param(full, id="full", marks=needs("hivemind")),
        pytest.param(light, id="light", marks=needs("libp2p")),
    ],
)
def play(request: pytest.FixtureRequest) -> Iterator[Callable[[Scene], None]]:
    """A function that runs a scene with our transport and a peer, which all scenes of a transport share."""
    with asyncio.Runner() as runner:
        joining: AbstractAsyncContextManager[Joined] = request.param()
        joined = runner.run(joining.__aenter__())
        yield lambda scene: runner.run(asyncio.wait_for(scene(joined), 60))
        runner.run(joining.__aexit__(None, None, None))


def on_each_transport(scene: Scene) -> Callable[[Callable[[Scene], None]], None]:
    def test(play: Callable[[Scene], None]) -> None:
        play(scene)

    test.__name__ = scene.__name__
    return test


async def read_exactly(stream: Stream, size_bytes: int) -> bytes:
    data = b""
    while len(data) < size_bytes:
        piece = await stream.read()
        assert piece, "the stream ended early"
        data += piece
    return data


@on_each_transport
async def test_bytes_travel_both_ways_in_order_and_unchanged(joined: Joined) -> None:
    stream = await joined.ours.dial(joined.peer_id, ECHO)
    for size_bytes in (1, 70_000, 3 << 20):
        data = bytes(range(256)) * (size_bytes // 256 + 1)
        writing = asyncio.ensure_future(stream.write(data))
        assert await read_exactly(stream, len(data)) == data
        await writing
    stream.close()


@on_each_transport
async def test_each_end_knows_the_other_and_what_is_said_last_arrives_before_the_end(joined: Joined) -> None:
    stream = await joined.ours.dial(joined.peer_id, WHO)
    assert stream.peer_id == joined.peer_id
    assert await read_exactly(stream, len(joined.ours.peer_id)) == joined.ours.peer_id.encode()
    assert [await stream.read(), await stream.read()] == [b"", b""]


@on_each_transport
async def test_where_a_peer_is_is_what_was_seen(joined: Joined) -> None:
    stream = await joined.ours.dial(joined.peer_id, ECHO)
    assert (await joined.ours.address_of(joined.peer_id)).startswith(joined.address)
    assert await joined.ours.address_of(NOBODY) == ""
    stream.close()


@on_each_transport
async def test_closing_wakes_a_read_may_be_repeated_and_refuses_later_writes(joined: Joined) -> None:
    stream = await joined.ours.dial(joined.peer_id, ECHO)
    reading = asyncio.ensure_future(stream.read())
    await asyncio.sleep(0.05)
    stream.close()
    stream.close()
    async with asyncio.timeout(3):
        assert await reading == b""
        assert await stream.read() == b""
    assert "closed" in (await lost(stream.write(b"late"))).reason


@on_each_transport
async def test_a_cancelled_read_leaves_the_stream_usable(joined: Joined) -> None:
    stream = await joined.ours.dial(joined.peer_id, ECHO)
    for number in range(20):
        reading = asyncio.ensure_future(stream.read())
        await asyncio.sleep(0)
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)
        await stream.write(b"%d" % number)
        assert await stream.read() == b"%d" % number


@on_each_transport
async def test_a_write_waits_for_a_peer_that_reads_nothing(joined: Joined) -> None:
    if not joined.is_bounded:
        return
    stream = await joined.ours.dial(joined.peer_id, HOLD)
    writing = asyncio.ensure_future(stream.write(bytes(64 << 20)))
    done, _ = await asyncio.wait([writing], timeout=0.3)
    assert not done
    if joined.frees_writers:
        stream.close()
        await lost(writing)
    writing.cancel()
    await asyncio.gather(writing, return_exceptions=True)
    stream.close()


@on_each_transport
async def test_an_echo_of_many_writes_takes_both_ways_once(joined: Joined) -> None:
    loop = asyncio.get_running_loop()
    began_s = loop.time()
    stream = await joined.ours.dial(joined.peer_id, ECHO)
    for number in range(50):
        await stream.write(bytes([number]))
    assert await read_exactly(stream, 50) == bytes(range(50))
    taken_s = loop.time() - began_s
    # One round trip for all fifty: a delay does not lower the rate.
    assert 2 * joined.one_way_s - 0.001 <= taken_s
    assert not joined.one_way_s or taken_s < 40 * joined.one_way_s


@on_each_transport
async def test_a_dial_that_cannot_be_says_why_at_the_first_read_at_the_latest(joined: Joined) -> None:
    async def read() -> bytes:
        return await (await joined.ours.dial(joined.peer_id, "/no/such/protocol")).read()

    refused = await lost(read())
    assert refused.peer_id == joined.peer_id and "/no/such/protocol" in refused.reason
    assert (await lost(joined.ours.dial(NOBODY, ECHO))).peer_id == NOBODY


@on_each_transport
async def test_leaving_ends_what_is_open(joined: Joined) -> None:
    stream = await joined.ours.dial(joined.peer_id, ECHO)
    await joined.ours.close()
    async with asyncio.timeout(3):
        assert await stream.read() == b""
