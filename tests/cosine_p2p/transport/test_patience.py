"""A network that is not there yet is waited for, for a while and with a word; who stops waiting does so at once."""

import asyncio

import pytest

from cosine_lab.emulation.virtual_loop import run_virtual
from cosine_p2p.transport.patience import (
    JOIN_PATIENCE_S,
    ask_patiently,
    unless_stopped,
)
from cosine_protocol.errors import PeerLost


class LateNetwork:
    """A network whose first peer answers from `since_s` on; it counts who tries to join."""

    def __init__(self, since_s: float) -> None:
        self.since_s = since_s
        self.attempts = 0
        self.noted: list[str] = []

    async def join(self) -> str:
        self.attempts += 1
        if asyncio.get_running_loop().time() < self.since_s:
            raise PeerLost("bootstrap", "it does not answer")
        return "joined"

    async def ask_patiently(self, patience_s: float) -> str:
        return await ask_patiently(self.join, patience_s=patience_s, note=self.noted.append)


def test_a_network_that_starts_at_the_same_time_is_waited_for() -> None:
    network = LateNetwork(5.0)
    assert run_virtual(network.ask_patiently(JOIN_PATIENCE_S)) == "joined"
    assert network.attempts == 4
    assert network.noted == ["Nobody of the network answers yet, asking again (bootstrap: it does not answer)"] * 3


@pytest.mark.parametrize(("patience_s", "ended_s"), [(JOIN_PATIENCE_S, JOIN_PATIENCE_S), (0.0, 0.0)])
def test_one_that_does_not_come_is_given_up(patience_s: float, ended_s: float) -> None:
    async def run() -> float:
        with pytest.raises(PeerLost, match="it does not answer"):
            await LateNetwork(1e6).ask_patiently(patience_s)
        return asyncio.get_running_loop().time()

    assert run_virtual(run()) == ended_s


@pytest.mark.parametrize("turns", range(6))
def test_whoever_is_cancelled_while_the_work_ends_is_cancelled(turns: int) -> None:
    async def run() -> None:
        running = asyncio.create_task(unless_stopped(asyncio.sleep(0), asyncio.Event()))
        for _ in range(turns):
            await asyncio.sleep(0)
        was_cancelled = running.cancel()
        await asyncio.wait([running])
        assert running.cancelled() is was_cancelled

    run_virtual(run())
