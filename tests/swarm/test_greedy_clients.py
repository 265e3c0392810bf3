"""One client that wants everything: others get their share at once, and every text is the target's."""

import asyncio
import random
from typing import Final

import pytest

from cosine_node.simulation.swarm import SimulatedSwarm
from cosine_node.simulation.virtual_loop import run_virtual
from cosine_p2p.client import AsyncClient
from cosine_p2p.generation import Generation
from cosine_protocol.errors import GenerationFailed
from cosine_protocol.request import Sampling
from tests.swarm.reference import draft_engine, plain_stream, prompt_of, target_engine

TOKENS: Final = 40
PROMPT: Final = prompt_of(random.Random("greedy"))
EXPECTED: Final = plain_stream(PROMPT, Sampling(), tokens=TOKENS)


async def take_all(client: AsyncClient, requests: int) -> None:
    """Ask for long texts, all at once and again and again."""

    async def keep_asking() -> None:
        while True:
            try:
                await client.generate(PROMPT, max_new_tokens=2000)
            except GenerationFailed:
                await asyncio.sleep(0.01)

    await asyncio.gather(*(keep_asking() for _ in range(requests)))


def generated(*, greedy: int, strategy: str = "plain") -> list[Generation]:
    """Texts of a modest client beside one with so many requests."""

    async def run() -> list[Generation]:
        async with SimulatedSwarm() as swarm:
            await swarm.verifier(target_engine(), max_requests=8)
            await swarm.drafter(draft_engine(0.9), max_requests=8)
            crowd = await swarm.client(strategy=strategy, timeout_s=3600.0)
            modest = await swarm.client(strategy=strategy, timeout_s=60.0)
            taking = asyncio.ensure_future(take_all(crowd, greedy))
            await asyncio.sleep(1.0)
            texts = [await modest.generate(PROMPT, max_new_tokens=TOKENS) for _ in range(3)]
            taking.cancel()
            await asyncio.gather(taking, return_exceptions=True)
            return texts

    return run_virtual(run())


@pytest.mark.parametrize("greedy", [8, 200])
def test_a_modest_client_is_served_at_once(greedy: int) -> None:
    [quiet, *_] = generated(greedy=0)
    for generation in generated(greedy=greedy):
        assert generation.token_ids == EXPECTED
        assert generation.seconds < 2 * quiet.seconds


def test_it_gets_drafts_too() -> None:
    for generation in generated(greedy=8, strategy="cosine"):
        assert generation.token_ids == EXPECTED
        assert generation.accepted > 0
