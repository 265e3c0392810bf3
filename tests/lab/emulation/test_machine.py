"""Machines that count and fail on demand, and wires that watch and damage."""

import asyncio
from collections.abc import Sequence

import pytest

from cosine_lab.emulation.machine import SimulatedMachine, WatchedTransport
from cosine_lab.emulation.memory_transport import MemoryNetwork
from cosine_lab.emulation.scripted_engine import ScriptedEngine
from cosine_lab.emulation.virtual_loop import run_virtual
from cosine_node.engine.base import PREFIX, BadLogits, Row
from cosine_node.engine.curve import CostCurve
from cosine_p2p.transport.base import Stream
from cosine_protocol.request import Sampling

CURVE = CostCurve(((1, 0.05), (8, 0.08)))
PROTOCOL = "/cosine/test/1.0.0"


def machine_with_rows(tokens: Sequence[int] = (1, 2)) -> tuple[SimulatedMachine, list[Row]]:
    engine = ScriptedEngine(vocab_tokens=16)
    rows = [Row(engine.open(sampling=Sampling(), prompt_tokens=1), (token,), (0,), (PREFIX,)) for token in tokens]
    return SimulatedMachine(engine, CURVE), rows


@pytest.mark.parametrize(
    ("slowness", "extra_s", "stalled_until_s", "takes_s"),
    [(3.0, 0.0, 0.0, 0.15), (1.0, 0.2, 0.0, 0.25), (1.0, 0.0, 6.0, 6.0), (2.0, 0.1, 0.01, 0.2)],
)
def test_a_machine_may_be_slow_late_or_stalled(
    slowness: float, extra_s: float, stalled_until_s: float, takes_s: float
) -> None:
    machine, rows = machine_with_rows((1,))
    machine.slowness, machine.extra_s, machine.stalled_until_s = slowness, extra_s, stalled_until_s
    assert run_virtual(machine.forward(rows)).elapsed_s == pytest.approx(takes_s)


def test_a_bad_pass_spoils_its_first_row_only() -> None:
    machine, rows = machine_with_rows()
    machine.bad_passes = 1
    spoilt, good = run_virtual(machine.forward(rows)).results
    assert isinstance(spoilt.error, BadLogits)
    assert spoilt.choices == ()
    assert good.error is None
    assert len(good.choices) == 1
    assert machine.bad_passes == 0


def test_a_wire_counts_streams_and_bytes_and_damages_one_byte() -> None:
    async def run() -> tuple[list[bytes], int, int, int]:
        network = MemoryNetwork()
        watched = WatchedTransport(network.join("server"))

        async def echo(stream: Stream) -> None:
            while data := await stream.read():
                await stream.write(data)

        await watched.serve(PROTOCOL, echo)
        stream = await network.join("client").dial("server", PROTOCOL)
        watched.wire.damaged_writes = 1
        heard = []
        for _ in range(2):
            await stream.write(b"four")
            heard.append(await stream.read())
        during = watched.wire.open_streams
        stream.close()
        await asyncio.sleep(0.1)
        return heard, during, watched.wire.open_streams, watched.wire.carried_bytes

    heard, during, after, carried_bytes = run_virtual(run())
    assert heard[1] == b"four"
    assert sum(a != b for a, b in zip(heard[0], b"four", strict=True)) == 1
    assert (during, after, carried_bytes) == (1, 0, 16)
