"""The in-memory network behaves as a real one does, as far as a stream shows."""

import asyncio

import pytest

from cosine_p2p.transport.base import Stream
from cosine_p2p.transport.memory import MemoryNetwork
from cosine_protocol.errors import PeerLost


async def echo(stream: Stream) -> None:
    while data := await stream.read():
        await stream.write(data)
    stream.close()


def test_echo_and_end() -> None:
    async def run() -> None:
        network = MemoryNetwork()
        a, b = network.join("a"), network.join("b")
        await b.serve("/echo", echo)
        stream = await a.dial("b", "/echo")
        assert stream.peer_id == "b"
        await stream.write(b"one")
        await stream.write(b"two")
        assert [await stream.read(), await stream.read()] == [b"one", b"two"]
        stream.close()
        with pytest.raises(PeerLost, match="closed"):
            await stream.write(b"three")
        await a.close()
        await b.close()

    asyncio.run(run())


def test_dials_that_cannot_be() -> None:
    async def run() -> None:
        network = MemoryNetwork()
        a, _ = network.join("a"), network.join("b")
        with pytest.raises(PeerLost, match="no such peer"):
            await a.dial("c", "/echo")
        with pytest.raises(PeerLost, match="does not serve /echo"):
            await a.dial("b", "/echo")

    asyncio.run(run())


def test_a_vanished_peer_ends_its_streams() -> None:
    async def run() -> None:
        network = MemoryNetwork()
        a, b = network.join("a"), network.join("b")
        await b.serve("/echo", echo)
        stream = await a.dial("b", "/echo")
        b.vanish()
        async with asyncio.timeout(1):
            assert await stream.read() == b""
        with pytest.raises(PeerLost):
            await a.dial("b", "/echo")
        await b.close()

    asyncio.run(run())


def test_bytes_take_their_time() -> None:
    async def run() -> float:
        network = MemoryNetwork(one_way_s=0.02)
        a, b = network.join("a"), network.join("b")
        await b.serve("/echo", echo)
        stream = await a.dial("b", "/echo")
        start_s = asyncio.get_running_loop().time()
        await stream.write(b"x")
        await stream.read()
        taken_s = asyncio.get_running_loop().time() - start_s
        await a.close()
        await b.close()
        return taken_s

    assert 0.039 <= asyncio.run(run()) < 0.5


def test_the_handler_sees_who_dials() -> None:
    async def run() -> str:
        network = MemoryNetwork()
        a, b = network.join("a"), network.join("b")
        seen: asyncio.Future[str] = asyncio.get_running_loop().create_future()

        async def look(stream: Stream) -> None:
            seen.set_result(stream.peer_id)

        await b.serve("/look", look)
        await a.dial("b", "/look")
        return await seen

    assert asyncio.run(run()) == "a"
