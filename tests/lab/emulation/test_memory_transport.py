"""The in-memory network behaves as a real one, as far as a stream shows."""

import asyncio
from dataclasses import dataclass

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from cosine_lab.emulation.memory_transport import MemoryNetwork
from cosine_lab.emulation.round_trips import FULL, LIGHT, RoundTrips
from cosine_lab.emulation.virtual_loop import run_virtual
from cosine_p2p.transport.base import Stream
from tests.scenes import in_virtual_time


async def echo(stream: Stream) -> None:
    while data := await stream.read():
        await stream.write(data)
    stream.close()


@dataclass(slots=True)
class Timetable:
    """A route whose openings and writes arrive after the given delays, one after another; then at once."""

    delays_s: list[float]

    def arrival_s(self, now_s: float, size_bytes: int) -> float:
        return now_s + (self.delays_s.pop(0) if self.delays_s else 0.0)


@example([0.0, 1e-10, 5e-10], 0.0)
@given(st.lists(st.floats(0, 10), min_size=1, max_size=10), st.floats(0, 2))
@in_virtual_time
async def test_what_a_route_lets_overtake_still_arrives_in_order(delays_s: list[float], opening_s: float) -> None:
    loop = asyncio.get_running_loop()
    timetables = {"a": Timetable([opening_s, *delays_s]), "b": Timetable([])}
    network = MemoryNetwork(routes=lambda source, _: timetables[source])
    a, b = network.join("a"), network.join("b")
    heard: asyncio.Future[list[tuple[int, float]]] = loop.create_future()

    async def note(stream: Stream) -> None:
        came = []
        while data := await stream.read():
            came.append((data[0], loop.time()))
        heard.set_result(came)

    await b.serve("/note", note)
    stream = await a.dial("b", "/note")
    for number in range(len(delays_s)):
        await stream.write(bytes([number]))
    stream.close()
    latest_s = [loop.time() + max(opening_s, *delays_s[: n + 1]) for n in range(len(delays_s))]
    assert [number for number, _ in await heard] == list(range(len(delays_s)))
    # Timers within the resolution of the clock, a nanosecond, fire together.
    assert [at_s for _, at_s in await heard] == pytest.approx(latest_s, abs=1e-8)
    await a.close()
    await b.close()


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
