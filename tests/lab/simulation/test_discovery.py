"""Discovery in virtual time: records are signed, live as long as they say, and are renewed."""

import asyncio

import pytest

from cosine_lab.emulation.scripted_engine import ScriptedEngine
from cosine_lab.emulation.virtual_loop import run_virtual
from cosine_lab.simulation.discovery import SimulatedDht
from cosine_lab.simulation.records import LIFETIME_S, TARGET
from cosine_lab.simulation.swarm import SimulatedSwarm, numbered_identity
from cosine_protocol.limits import MAX_CELL_OWNERS
from cosine_protocol.records import Role

READER = numbered_identity(9000)


@pytest.mark.parametrize(("is_renewed", "is_found"), [(False, False), (True, True)])
def test_a_record_lapses_unless_it_is_renewed(is_renewed: bool, is_found: bool) -> None:
    async def run() -> bool:
        dht = SimulatedDht()
        async with SimulatedSwarm(directory_of=dht.directory) as swarm:
            await swarm.verifier(ScriptedEngine())
            renewing = asyncio.ensure_future(swarm.keep_announced())
            if not is_renewed:
                renewing.cancel()
            await asyncio.sleep(2.2 * LIFETIME_S)
            renewing.cancel()
            return bool(await dht.directory(READER).find(Role.VERIFIER, TARGET))

    assert run_virtual(run()) is is_found


def test_more_nodes_than_a_cell_holds_are_all_found() -> None:
    count = MAX_CELL_OWNERS + 8

    async def run() -> int:
        dht = SimulatedDht()
        async with SimulatedSwarm(directory_of=dht.directory) as swarm:
            for _ in range(count):
                await swarm.drafter(ScriptedEngine(pool_tokens=64))
            return len(await dht.directory(READER).find(Role.DRAFTER, TARGET))

    assert run_virtual(run()) == count
