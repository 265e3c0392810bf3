"""Tests of the error for a client with a wrong clock."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

import pytest

from cosine_cli.status import problem_of
from cosine_lab.emulation.memory_directory import MemoryCells
from cosine_lab.simulation.discovery import NETWORK
from cosine_lab.simulation.records import TARGET
from cosine_lab.simulation.swarm import SimulatedSwarm, numbered_identity
from cosine_p2p.dht.cells import DhtDirectory
from cosine_p2p.directory.directory import Directory
from cosine_p2p.survey import Surveyor
from cosine_protocol.errors import ClockOff, GenerationFailed
from cosine_protocol.identity import Identity
from tests.scenes import in_virtual_time
from tests.swarm.reference import target_engine

CLIENT = numbered_identity(500)
VERIFIERS = 3


Seen = TypeVar("Seen")


@in_virtual_time
async def with_clock_off(
    look: Callable[[SimulatedSwarm], Awaitable[Seen]], *, off_s: float, verifiers: int
) -> Seen:
    """Return the result of a client whose clock is ahead of those of the nodes by `off_s`."""
    loop = asyncio.get_running_loop()
    cells = MemoryCells(network=NETWORK, clock=loop.time)

    def directory_of(identity: Identity) -> Directory:
        ahead_s = off_s if identity.peer_id == CLIENT.peer_id else 0.0
        return DhtDirectory(cells, identity, network=NETWORK, clock=lambda: loop.time() + ahead_s)

    async with SimulatedSwarm(directory_of=directory_of) as swarm:
        for _ in range(verifiers):
            await swarm.verifier(target_engine())
        return await look(swarm)


async def generated(swarm: SimulatedSwarm) -> tuple[int, ...]:
    client = await swarm.client(identity=CLIENT)
    return (await client.generate("0123", max_new_tokens=4)).token_ids


async def surveyed(swarm: SimulatedSwarm) -> str:
    surveyor = Surveyor(swarm.client_swarm(CLIENT), target=TARGET)
    survey = await surveyor.survey()
    await surveyor.close()
    return problem_of(survey, NETWORK)


@pytest.mark.parametrize(
    ("off_s", "found"),
    [(-7300.0, "at least 2 h behind those of 3 peers"), (7900.0, "at least 2 h ahead of those of 3 peers")],
)
def test_a_client_whose_clock_is_off_is_told_why_it_finds_nobody(off_s: float, found: str) -> None:
    with pytest.raises(ClockOff, match=f"no node was found, and this machine's clock is {found}"):
        with_clock_off(generated, off_s=off_s, verifiers=VERIFIERS)
    assert found in with_clock_off(surveyed, off_s=off_s, verifiers=VERIFIERS)


def test_a_little_off_is_no_matter_and_nobody_at_all_is_no_matter_of_the_clock() -> None:
    assert len(with_clock_off(generated, off_s=-50.0, verifiers=VERIFIERS)) == 4
    assert with_clock_off(surveyed, off_s=50.0, verifiers=VERIFIERS) == ""
    with pytest.raises(GenerationFailed, match="No verifier serves"):
        with_clock_off(generated, off_s=-7200.0, verifiers=0)
