"""What speculation brings and what it may cost, exact in virtual time (60 ms a pass, 6 ms a draft token)."""

import random
from functools import cache

import pytest

from cosine_lab.emulation.virtual_loop import run_virtual
from cosine_lab.simulation.swarm import SimulatedSwarm
from cosine_p2p.request.results import Generation
from tests.swarm.reference import draft_engine, prompt_of, target_engine
from tests.thoroughness import quick_first

TOKENS = 96
NEVER_BELOW = 0.98


async def generated(strategy: str, fidelities: tuple[float, ...], one_way_s: float) -> Generation:
    async with SimulatedSwarm(one_way_s=one_way_s) as swarm:
        await swarm.verifier(target_engine())
        for number, fidelity in enumerate(fidelities):
            await swarm.drafter(draft_engine(fidelity, number), domain=f"d{number}")
        client = await swarm.client(strategy=strategy)
        return await client.generate(prompt_of(random.Random("speed")), max_new_tokens=TOKENS)


@cache
def plain_s(one_way_s: float) -> float:
    return run_virtual(generated("plain", (), one_way_s)).seconds


def speedup(fidelities: tuple[float, ...], one_way_s: float) -> float:
    return plain_s(one_way_s) / run_virtual(generated("cosine", fidelities, one_way_s)).seconds


@pytest.mark.parametrize(("one_way_s", "at_least"), [(0.005, 2.0), (0.02, 1.5), (0.05, 1.2)])
def test_a_good_drafter_pays(one_way_s: float, at_least: float) -> None:
    assert speedup((0.8,), one_way_s) > at_least


def test_drafts_that_arrive_after_their_base_was_committed_past_still_count() -> None:
    """Half a pass of delay each way: every first fragment comes late, the drafter is always right."""
    assert speedup((1.0,), 0.05) > 2.5


@pytest.mark.parametrize("fidelities", quick_first([(0.0,), (0.0, 0.1, 0.3, 0.2), (0.2,), (0.5,), (0.9,)]))
@pytest.mark.parametrize("one_way_s", quick_first([0.02, 0.0, 0.005, 0.06, 0.15]))
def test_never_slower_than_plain(fidelities: tuple[float, ...], one_way_s: float) -> None:
    assert speedup(fidelities, one_way_s) >= NEVER_BELOW
