"""Nodes that rest by their operator's rules lose no request: they finish what they have and take nothing new."""

import asyncio
import random

from cosine_lab.simulation.swarm import SimulatedSwarm
from cosine_protocol.request import Sampling
from tests.swarm.reference import draft_engine, in_a_swarm, plain_stream, prompt_of, target_engine

TOKENS = 40
PROMPT = prompt_of(random.Random("guests"))
EXPECTED = plain_stream(PROMPT, Sampling(), tokens=TOKENS)


@in_a_swarm
async def test_a_resting_verifier_finishes_its_request_and_the_next_one_goes_elsewhere(
    swarm: SimulatedSwarm,
) -> None:
    first, second = await swarm.verifier(target_engine()), await swarm.verifier(target_engine())
    client = await swarm.client(max_new_tokens=TOKENS)
    running = asyncio.ensure_future(client.generate(PROMPT))
    await asyncio.sleep(0.2)
    served = next(node for node in (first, second) if node.service.requests)
    served.service.rest(True)
    done = await running
    assert [report.peer_id for report in done.verifiers] == [served.transport.peer_id]
    again = await client.generate(PROMPT)
    assert done.token_ids == again.token_ids == EXPECTED
    assert served.transport.peer_id not in [report.peer_id for report in again.verifiers]
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
    assert again.token_ids == EXPECTED and again.accepted
