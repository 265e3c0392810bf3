"""Nodes that rest by their operator's rules lose no request: they finish what they have and take nothing new."""

import asyncio
from collections.abc import Callable
from functools import partial

import pytest

from cosine_engine.models.unloading import ModelMemory, WaitForWork
from cosine_lab.emulation.scripted_engine import ScriptedEngine
from cosine_lab.simulation.swarm import SimulatedSwarm
from tests.swarm.reference import draft_engine, greedy_text, in_a_swarm, target_engine

TOKENS = 40
PROMPT, EXPECTED = greedy_text("guests", TOKENS)


@in_a_swarm
async def test_a_resting_verifier_finishes_its_request_and_gets_no_other(swarm: SimulatedSwarm) -> None:
    first, second = await swarm.verifier(target_engine()), await swarm.verifier(target_engine())
    client = await swarm.client(max_new_tokens=TOKENS)
    running = asyncio.ensure_future(client.generate(PROMPT))
    await asyncio.sleep(0.2)
    served = next(node for node in (first, second) if node.service.requests)
    served.service.rest(True)
    done = await running
    assert [report.peer_id for report in done.swarm.verifiers] == [served.transport.peer_id]
    again = await client.generate(PROMPT)
    assert done.token_ids == again.token_ids == EXPECTED
    assert served.transport.peer_id not in [report.peer_id for report in again.swarm.verifiers]
    served.service.rest(False)
    (second if served is first else first).service.rest(True)
    assert (await client.generate(PROMPT)).token_ids == EXPECTED


@in_a_swarm
async def test_a_resting_drafter_leaves_its_request_and_drafts_again_afterwards(swarm: SimulatedSwarm) -> None:
    await swarm.verifier(target_engine())
    drafter = await swarm.drafter(draft_engine(0.9))
    client = await swarm.client(max_new_tokens=TOKENS)
    running = asyncio.ensure_future(client.generate(PROMPT))
    await asyncio.sleep(0.2)
    drafter.service.rest(True)
    assert not drafter.service.requests
    assert (await running).token_ids == (await client.generate(PROMPT)).token_ids == EXPECTED
    assert not drafter.service.requests
    drafter.service.rest(False)
    await asyncio.sleep(30.0)
    again = await client.generate(PROMPT)
    assert again.token_ids == EXPECTED and again.swarm.accepted


LOAD_S = 20.0
IDLE_S = 60.0


class Unloaded(ModelMemory):
    """A simulated model that is unloaded after `IDLE_S`, and whose first `failing` loads fail."""

    def __init__(self, make: Callable[[], ScriptedEngine], *, failing: int = 0, after_s: float = IDLE_S) -> None:
        self.told: list[str] = []
        self.loads = 0

        async def load() -> list[ScriptedEngine]:
            await asyncio.sleep(LOAD_S)
            self.loads += 1
            if self.loads <= failing:
                raise MemoryError("a game has it")
            return [make()]

        super().__init__(
            [make()],
            load,
            model="model",
            load_s=LOAD_S,
            after_s=after_s,
            emit=lambda event, fields: self.told.append(event),
        )

    def waiting(self, swarm: SimulatedSwarm, place: int) -> WaitForWork:
        """Wait for work at the member of the swarm with that place."""
        return lambda work: self.wait(work, idle=asyncio.Event.wait, progress=swarm.members[place].service.progress)


@in_a_swarm
async def test_a_request_waits_for_the_only_verifiers_model_and_its_text_is_the_same(swarm: SimulatedSwarm) -> None:
    memory = Unloaded(target_engine)
    await swarm.verifier(memory.engines[0], wait_for_work=memory.waiting(swarm, 0))
    client = await swarm.client(max_new_tokens=TOKENS)
    assert (await client.generate(PROMPT)).token_ids == EXPECTED
    for unloads in range(1, 3):
        assert memory.until_loaded_s == 0.0
        await asyncio.sleep(2 * IDLE_S)
        assert memory.until_loaded_s == pytest.approx(LOAD_S) and memory.told == ["unloaded"] * unloads
        began_s = asyncio.get_running_loop().time()
        both = await asyncio.gather(client.generate(PROMPT), client.generate(PROMPT))
        assert [done.token_ids for done in both] == [EXPECTED] * 2
        assert LOAD_S < asyncio.get_running_loop().time() - began_s < LOAD_S + 10.0
        assert {len(done.swarm.verifiers) for done in both} == {1} and memory.loads == unloads


@in_a_swarm
async def test_a_failed_load_loses_no_request_and_is_tried_again(swarm: SimulatedSwarm) -> None:
    memory = Unloaded(target_engine, failing=1)
    await swarm.verifier(memory.engines[0], wait_for_work=memory.waiting(swarm, 0))
    await asyncio.sleep(2 * IDLE_S)
    client = await swarm.client(max_new_tokens=TOKENS, timeout_s=300.0, patience_s=60.0)
    assert (await client.generate(PROMPT)).token_ids == EXPECTED
    assert memory.loads == 2 and memory.until_loaded_s == 0.0


@in_a_swarm
async def test_an_unloaded_drafter_costs_drafts_alone_until_it_is_loaded(swarm: SimulatedSwarm) -> None:
    memory = Unloaded(partial(draft_engine, 0.9))
    await swarm.verifier(target_engine())
    await swarm.drafter(memory.engines[0], wait_for_work=memory.waiting(swarm, 1))
    await asyncio.sleep(2 * IDLE_S)
    client = await swarm.client(max_new_tokens=TOKENS)
    first = await client.generate(PROMPT)
    assert first.token_ids == EXPECTED and not first.swarm.accepted
    await asyncio.sleep(LOAD_S)
    again = await client.generate(PROMPT)
    assert again.token_ids == EXPECTED and again.swarm.accepted and memory.loads == 1
