"""An emulated link holds bytes back, keeps their order, and ends when its stream does."""

import asyncio

from cosine_lab.emulation.memory_transport import MemoryNetwork
from cosine_p2p.transport.base import Stream
from cosine_p2p.transport.delay import DelayedTransport, delayed

ONE_WAY_S = 0.02


async def echo(stream: Stream) -> None:
    while data := await stream.read():
        await stream.write(data)
    stream.close()


async def dialled(network: MemoryNetwork) -> Stream:
    a, b = network.join("a"), network.join("b")
    await b.serve("/echo", delayed(echo, one_way_s=ONE_WAY_S))
    return await a.dial("b", "/echo")


async def leave(network: MemoryNetwork) -> None:
    for transport in list(network.transports.values()):
        await transport.close()


def test_an_echo_takes_both_ways_and_keeps_order() -> None:
    async def run() -> float:
        network = MemoryNetwork()
        stream = await dialled(network)
        start_s = asyncio.get_running_loop().time()
        for number in range(50):
            await stream.write(bytes([number]))
        received = b""
        while len(received) < 50:
            received += await stream.read()
        taken_s = asyncio.get_running_loop().time() - start_s
        assert received == bytes(range(50))
        await leave(network)
        return taken_s

    # One delay each way for all fifty: the link holds bytes back without lowering the rate.
    assert 2 * ONE_WAY_S - 0.001 <= asyncio.run(run()) < 20 * ONE_WAY_S


def test_a_transport_can_be_far_from_everybody() -> None:
    async def run() -> float:
        network = MemoryNetwork()
        far, near = DelayedTransport(network.join("a"), ONE_WAY_S), network.join("b")
        await near.serve("/echo", echo)
        await far.serve("/echo", echo)
        start_s = asyncio.get_running_loop().time()
        for stream in (await far.dial("b", "/echo"), await near.dial("a", "/echo")):
            await stream.write(b"x")
            assert await stream.read() == b"x"
        taken_s = asyncio.get_running_loop().time() - start_s
        assert far.peer_id == "a"
        await far.close()
        await leave(network)
        return taken_s

    # A round trip to open a stream, and one for the echo; the stream that the other peer opened takes the latter.
    assert asyncio.run(run()) >= 6 * ONE_WAY_S - 0.001


def test_no_delay_is_no_wrapper() -> None:
    assert delayed(echo, one_way_s=0.0) is echo
