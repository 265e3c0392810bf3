"""The network is asked whether it serves, but not at every probe."""

import asyncio
from collections.abc import Sequence

import pytest

from cosine_lab.simulation.virtual_loop import run_virtual
from cosine_node.gateway.app import FRESH_S, LOOK_UP_TIMEOUT_S, RETRY_S, VerifierWatch
from cosine_protocol.errors import GenerationFailed
from cosine_protocol.records import NodeRecord


class Network:
    """Answers a look-up after a while with as many verifiers as it is told to have."""

    def __init__(self, *, verifiers: int, delay_s: float = 0.5) -> None:
        self.verifiers = verifiers
        self.delay_s = delay_s
        self.look_ups = 0

    async def find_verifiers(self) -> Sequence[NodeRecord]:
        self.look_ups += 1
        await asyncio.sleep(self.delay_s)
        if not self.verifiers:
            raise GenerationFailed("No verifier serves this.")
        return [NodeRecord.__new__(NodeRecord)] * self.verifiers


async def glance(watch: VerifierWatch) -> tuple[int, str]:
    found, reason = await watch.look()
    return len(found), reason


def test_what_was_found_is_remembered_for_a_while() -> None:
    async def run() -> None:
        network = Network(verifiers=2)
        watch = VerifierWatch(network.find_verifiers)
        seen = await asyncio.gather(*(glance(watch) for _ in range(5)))
        assert (seen, network.look_ups) == ([(2, "")] * 5, 1)
        network.verifiers = 0
        assert await glance(watch) == (2, "")
        await asyncio.sleep(FRESH_S)
        assert await glance(watch) == (0, "No verifier serves this.")

    run_virtual(run())


def test_a_network_that_had_none_is_asked_again_soon() -> None:
    async def run() -> None:
        network = Network(verifiers=0)
        watch = VerifierWatch(network.find_verifiers)
        for _ in range(3):
            assert await glance(watch) == (0, "No verifier serves this.")
        assert network.look_ups == 1
        network.verifiers = 1
        await asyncio.sleep(RETRY_S)
        assert (await glance(watch), network.look_ups) == ((1, ""), 2)

    run_virtual(run())


def test_a_silent_network_is_not_waited_for() -> None:
    async def run() -> float:
        watch = VerifierWatch(Network(verifiers=1, delay_s=1e6).find_verifiers)
        found, reason = await watch.look()
        assert (found, "did not answer" in reason) == ((), True)
        return asyncio.get_running_loop().time()

    assert run_virtual(run()) == pytest.approx(LOOK_UP_TIMEOUT_S)
