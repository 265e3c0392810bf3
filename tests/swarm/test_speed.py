"""What speculation brings and what it may cost, exact in virtual time (6 ms a draft token, 60 ms a pass)."""

import random
from functools import cache
from typing import Any

import pytest

from cosine_lab.emulation.virtual_loop import run_virtual
from cosine_lab.simulation.swarm import VERIFY_CURVE, SimulatedSwarm
from cosine_node.engine.curve import CostCurve
from cosine_p2p.request.results import Generation
from tests.swarm.reference import draft_engine, prompt_of, target_engine
from tests.thoroughness import quick_first

TOKENS = 96
NEVER_BELOW = 0.98
DEAR = CostCurve(((1, 0.020), (2, 0.040), (4, 0.070)))
"""A second token costs as much as the first, as with weights in four bits on a processor."""


async def generated(
    strategy: str,
    fidelities: tuple[float, ...],
    one_way_s: float,
    curve: CostCurve = VERIFY_CURVE,
    temperature: float = 0.0,
    tokens: int = TOKENS,
) -> Generation:
    async with SimulatedSwarm(one_way_s=one_way_s) as swarm:
        await swarm.verifier(target_engine(), curve=curve)
        for number, fidelity in enumerate(fidelities):
            await swarm.drafter(draft_engine(fidelity, number), domain=f"d{number}")
        client = await swarm.client(strategy=strategy)
        prompt = prompt_of(random.Random("speed"))
        return await client.generate(prompt, max_new_tokens=tokens, temperature=temperature, seed=1)


@cache
def plain_s(one_way_s: float, *circumstances: Any) -> float:
    return run_virtual(generated("plain", (), one_way_s, *circumstances)).seconds


def speedup(fidelities: tuple[float, ...], one_way_s: float, *circumstances: Any) -> float:
    ours = run_virtual(generated("cosine", fidelities, one_way_s, *circumstances))
    return plain_s(one_way_s, *circumstances) / ours.seconds


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


@pytest.mark.parametrize("fidelity", quick_first([0.9, 0.1, 0.3, 0.6]))
@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize("one_way_s", quick_first([0.01, 0.0, 0.05]))
def test_where_a_second_token_costs_as_much_as_the_first_a_new_client_loses_no_percent(
    fidelity: float, temperature: float, one_way_s: float
) -> None:
    assert speedup((fidelity, fidelity), one_way_s, DEAR, temperature, 64) >= 0.99


def test_drafts_that_are_nearly_certain_pay_there_too() -> None:
    assert speedup((1.0,), 0.01, DEAR, 0.0, 200) > 1.05
