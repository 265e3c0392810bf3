"""A client waits for a network that is not ready, for a while and with a message, and can be cancelled."""

import asyncio
from contextlib import nullcontext

import pytest

from cosine_lab.emulation.virtual_loop import run_virtual
from cosine_p2p.transport.patience import JOIN_PATIENCE_S, ask_patiently, unless_stopped
from cosine_protocol.errors import PeerLost
from tests.scenes import in_virtual_time


@pytest.mark.parametrize(
    ("answers_at_s", "patience_s", "ended_s", "times"),
    [(5.0, JOIN_PATIENCE_S, 6.0, 3), (1e6, JOIN_PATIENCE_S, JOIN_PATIENCE_S, 30), (1e6, 0.0, 0.0, 0)],
)
def test_joining_is_repeated_for_a_while(
    answers_at_s: float, patience_s: float, ended_s: float, times: int
) -> None:
    noted: list[str] = []

    async def join() -> None:
        if asyncio.get_running_loop().time() < answers_at_s:
            raise PeerLost("bootstrap", "it does not answer")

    async def run() -> float:
        with pytest.raises(PeerLost) if answers_at_s > patience_s else nullcontext():
            await ask_patiently(join, patience_s=patience_s, note=noted.append)
        return asyncio.get_running_loop().time()

    assert run_virtual(run()) == ended_s
    assert noted == ["No node of the network answers yet, asking again (bootstrap: it does not answer)"] * times


@pytest.mark.parametrize("turns", range(6))
@in_virtual_time
async def test_a_task_cancelled_while_its_work_ends_is_cancelled(turns: int) -> None:
    running = asyncio.create_task(unless_stopped(asyncio.sleep(0), asyncio.Event()))
    for _ in range(turns):
        await asyncio.sleep(0)
    was_cancelled = running.cancel()
    await asyncio.wait([running])
    assert running.cancelled() is was_cancelled
