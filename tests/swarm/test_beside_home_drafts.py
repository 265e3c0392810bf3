"""Drafters beside a verifier's own drafter: where that is good a new client loses nothing by them.

Virtual time. Drafters share the verifier's processor: each that drafts lengthens passes by 12 %.
"""

import asyncio
import random

import pytest

from cosine_lab.emulation.virtual_loop import run_virtual
from cosine_lab.simulation.swarm import SimulatedSwarm
from cosine_node.engine.curve import CostCurve
from tests.swarm.reference import draft_engine, prompt_of, target_engine
from tests.swarm.test_dear_drafts import share_processor
from tests.thoroughness import quick_first

FLAT = CostCurve(((1, 0.020), (8, 0.021), (16, 0.024), (64, 0.05)))
HEAD = CostCurve(((1, 0.0012), (16, 0.0016)))
SLOW = CostCurve(((1, 0.015), (16, 0.016)))
REQUESTS, TOKENS = 4, 64


async def asked(
    fidelity: float, temperature: float, *, home_curve: CostCurve = HEAD, max_drafters: int | None = None
) -> list[float]:
    """The seconds of requests of a client that is new at a verifier which has answered others."""
    async with SimulatedSwarm() as swarm:
        home = draft_engine(0.85, 9)
        verifier = await swarm.verifier(target_engine(), curve=FLAT, home_engine=home, home_curve=home_curve)
        drafters = [await swarm.drafter(draft_engine(fidelity, n), domain=f"d{n}") for n in range(3)]
        sharing = asyncio.ensure_future(share_processor(verifier, drafters))
        rng = random.Random("beside")
        earlier = await swarm.client(max_drafters=0)
        await earlier.generate(prompt_of(rng), max_new_tokens=TOKENS, temperature=temperature, seed=99)
        client = await swarm.client(max_drafters=max_drafters)
        done = [
            await client.generate(prompt_of(rng), max_new_tokens=TOKENS, temperature=temperature, seed=number)
            for number in range(REQUESTS)
        ]
        sharing.cancel()
        return [generation.seconds for generation in done]


@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize("fidelity", quick_first([0.4, 0.0, 0.7]))
def test_no_request_of_a_new_client_takes_longer_than_without_drafters(fidelity: float, temperature: float) -> None:
    alone = run_virtual(asked(fidelity, temperature, max_drafters=0))
    beside = run_virtual(asked(fidelity, temperature))
    for without_s, seconds in zip(alone, beside, strict=True):
        assert without_s / seconds >= 0.99


def test_beside_one_that_is_slow_drafters_are_asked_from_the_start() -> None:
    alone = run_virtual(asked(1.0, 0.0, home_curve=SLOW, max_drafters=0))
    beside = run_virtual(asked(1.0, 0.0, home_curve=SLOW))
    assert sum(alone) / sum(beside) > 1.3
