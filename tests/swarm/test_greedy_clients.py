"""Tests that a client with many requests leaves others their share."""

import asyncio
from typing import Final

import pytest

from cosine_engine.curve import CostCurve
from cosine_lab.simulation.swarm import VERIFY_CURVE, SimulatedSwarm
from cosine_node.passes.fair_pass import CROWD
from cosine_p2p.client import AsyncClient
from cosine_p2p.request.results import Generation
from cosine_protocol.errors import GenerationFailed
from tests.scenes import in_virtual_time
from tests.swarm.reference import draft_engine, greedy_text, target_engine
from tests.thoroughness import quick_rows

TOKENS: Final = 40
BY_THE_TOKEN: Final = CostCurve(((1, 0.060), (64, 64 * 0.060)))
PROMPT, EXPECTED = greedy_text("greedy", TOKENS)


async def take_all(client: AsyncClient, requests: int) -> None:

    async def keep_asking() -> None:
        while True:
            try:
                await client.generate(PROMPT, max_new_tokens=2000)
            except GenerationFailed:
                await asyncio.sleep(0.01)

    await asyncio.gather(*(keep_asking() for _ in range(requests)))


@in_virtual_time
async def generated(*, greedy: int, strategy: str = "plain", curve: CostCurve = VERIFY_CURVE) -> list[Generation]:
    """Return texts of a modest client while another has `greedy` requests."""
    async with SimulatedSwarm() as swarm:
        await swarm.verifier(target_engine(), max_requests=8, curve=curve)
        await swarm.drafter(draft_engine(0.9), max_requests=8)
        crowd = await swarm.client(strategy=strategy, timeout_s=3600.0)
        modest = await swarm.client(strategy=strategy, timeout_s=60.0)
        taking = asyncio.ensure_future(take_all(crowd, greedy))
        await asyncio.sleep(1.0)
        texts = [await modest.generate(PROMPT, max_new_tokens=TOKENS) for _ in range(2)]
        taking.cancel()
        await asyncio.gather(taking, return_exceptions=True)
        return texts


@pytest.mark.parametrize(
    ("greedy", "strategy"), quick_rows([(64, "plain"), (8, "plain"), (8, "cosine"), (200, "plain")])
)
def test_a_modest_client_is_served_at_once(greedy: int, strategy: str) -> None:
    [quiet, *_] = generated(greedy=0, strategy=strategy)
    for generation in generated(greedy=greedy, strategy=strategy):
        assert generation.token_ids == EXPECTED
        assert generation.seconds < CROWD * quiet.seconds
        assert bool(generation.swarm.accepted) is (strategy != "plain")


def test_a_modest_client_has_its_share_of_passes_that_cost_by_the_token() -> None:
    [quiet, *_] = generated(greedy=0, curve=BY_THE_TOKEN)
    first, *later = generated(greedy=64, curve=BY_THE_TOKEN)
    assert first.token_ids == EXPECTED and first.seconds < 3 * quiet.seconds
    for generation in later:
        assert generation.token_ids == EXPECTED and generation.seconds < 2.1 * quiet.seconds
