"""The in-memory network behaves as a real one, as far as a stream shows."""

import asyncio

import pytest

from cosine_lab.emulation.memory_transport import MemoryNetwork
from cosine_lab.emulation.round_trips import FULL, LIGHT, RoundTrips
from cosine_lab.emulation.virtual_loop import run_virtual
from cosine_p2p.transport.base import Stream


async def echo(stream: Stream) -> None:
    while data := await stream.read():
        await stream.write(data)
    stream.close()


async def opened_s(network: MemoryNetwork, dialler: str, *targets: str) -> list[float]:
    """Return the seconds until each stream is open and its first bytes are answered, one after the other."""
    loop, took_s = asyncio.get_running_loop(), []
    for name in (dialler, *targets):
        if name not in network.transports:
            await network.join(name).serve("/echo", echo)
    for target in targets:
        began_s = loop.time()
        stream = await network.transports[dialler].dial(target, "/echo")
        await stream.write(b"x")
        assert await stream.read() == b"x"
        took_s.append(loop.time() - began_s)
    return took_s


@pytest.mark.parametrize(("counts", "first"), [(LIGHT, 3), (FULL, 5)])
def test_a_connection_is_made_once_and_costs_what_its_transport_does(counts: RoundTrips, first: int) -> None:
    def network() -> MemoryNetwork:
        return MemoryNetwork(one_way_s=0.1, round_trips=lambda peer_id: counts)

    assert run_virtual(opened_s(network(), "a", "b", "b", "c")) == pytest.approx([0.2 * first, 0.2, 0.2 * first])
