"""Signed records with no honest node behind them: they cost their own place, never a text or an honest verifier."""

import asyncio
from dataclasses import replace
from typing import Any, Final

import pytest

from cosine_lab.emulation.virtual_loop import run_virtual
from cosine_lab.simulation.records import TARGET
from cosine_lab.simulation.swarm import SimulatedSwarm, numbered_identity
from cosine_p2p.client import AsyncClient
from cosine_p2p.request.results import Generation
from cosine_protocol.records import Role

TOKENS: Final = 24
DEAD: Final = numbered_identity(9000)
FASTEST: Final[dict[str, Any]] = {"pass_us": 1, "load_requests": 0, "capacity_requests": 1000}
LIES: Final[dict[str, dict[str, Any]]] = {
    "numerics of its own": {"numerics": "float16"},
    "no room for a prompt": {"context_tokens": 1},
    "room for one token": {"context_tokens": 6},
    "an endless context": {"context_tokens": 1 << 30},
    "nothing else": {},
}


async def announce_dead(swarm: SimulatedSwarm, **lie: Any) -> None:
    """The record of a verifier that does not exist, the fastest of all by its own words."""
    (true,) = await swarm.directory.find(Role.VERIFIER, TARGET)
    record = replace(true, peer_id=DEAD.peer_id, addresses=(), **(FASTEST | lie))
    await swarm.directory.announce(record, [TARGET])


def generated(*, lie: dict[str, Any] | None) -> list[Generation]:
    """Three texts of one client where an honest verifier serves, beside a dead record or alone."""

    async def run() -> list[Generation]:
        async with SimulatedSwarm() as swarm:
            await swarm.verifier()
            if lie is not None:
                await announce_dead(swarm, **lie)
            client: AsyncClient = await swarm.client(strategy="plain", max_new_tokens=TOKENS)
            return [await client.generate("hello", seed=number) for number in range(3)]

    return run_virtual(run())


@pytest.mark.parametrize("lie", LIES.values(), ids=LIES)
def test_a_dead_record_changes_no_text(lie: dict[str, Any]) -> None:
    assert [each.token_ids for each in generated(lie=lie)] == [each.token_ids for each in generated(lie=None)]


@pytest.mark.parametrize("lie", LIES.values(), ids=LIES)
def test_one_that_was_asked_in_vain_is_not_asked_again_by_the_next_request(lie: dict[str, Any]) -> None:
    later, alone = generated(lie=lie)[1:], generated(lie=None)[1:]
    assert [each.seconds for each in later] == pytest.approx([each.seconds for each in alone], rel=0.05)
    assert all(DEAD.peer_id != verifier.peer_id for each in later for verifier in each.verifiers)


def test_verifiers_of_other_numerics_serve_where_those_of_the_first_are_gone() -> None:
    async def run() -> Generation:
        async with SimulatedSwarm() as swarm:
            await swarm.verifier()
            await announce_dead(swarm, numerics="bfloat16")
            client = await swarm.client(strategy="plain", max_new_tokens=TOKENS)
            run = await client.start("hello")
            assert run.request.numerics == "bfloat16"
            async for _ in run.chunks():
                await asyncio.sleep(0)
            assert run.request.numerics == "scripted"
            assert any(DEAD.peer_id in tried for tried in run.progress().tried)
            return run.result()

    assert run_virtual(run()).tokens == TOKENS
