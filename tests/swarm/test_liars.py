"""Tests of drafters that lie."""

import math
from collections.abc import Callable

import pytest

from cosine_lab.emulation.virtual_loop import run_virtual
from cosine_lab.simulation.liars import LIES, Liar, Lie
from cosine_lab.simulation.swarm import VERIFY_CURVE, SimulatedSwarm
from cosine_p2p.request.results import Generation
from cosine_p2p.transport.base import StreamHandler
from cosine_protocol.identity import Identity
from tests.swarm.reference import VOCAB_TOKENS, assert_freed, draft_engine, greedy_text, target_engine
from tests.thoroughness import quick_first, soak_rest

TOKENS = 96
PASS_S = VERIFY_CURVE.seconds(1)
PROMPT, EXPECTED = greedy_text("liars", TOKENS)


def serving(lie: Lie, *, prompt_nll: float = 0.0) -> Callable[[Identity], StreamHandler]:
    def serve(identity: Identity) -> StreamHandler:
        return Liar(identity, lie, vocab_tokens=VOCAB_TOKENS, prompt_nll=prompt_nll).handle

    return serve


async def generated(
    strategy: str, lies: list[Lie], *, honest: int = 0, one_way_s: float = 0.005, prompt_nll: float = 0.0
) -> Generation:
    async with SimulatedSwarm(one_way_s=one_way_s) as swarm:
        await swarm.verifier(target_engine())
        for lie in lies:
            await swarm.drafter_with(serving(lie, prompt_nll=prompt_nll), domain=lie.__name__)
        for number in range(honest):
            await swarm.drafter(draft_engine(0.9, number), domain=f"honest-{number}")
        client = await swarm.client(strategy=strategy)
        generation = await client.generate(PROMPT, max_new_tokens=TOKENS)
        await assert_freed(swarm)
        return generation


@pytest.fixture(scope="module")
def plain_s() -> float:
    return run_virtual(generated("plain", [])).seconds


@pytest.mark.thorough
@pytest.mark.parametrize("one_way_s", soak_rest([0.005, 0.0, 0.05]))
@pytest.mark.parametrize("name", LIES)
def test_a_liar_costs_at_most_two_percent_and_a_pass(name: str, one_way_s: float) -> None:
    plain = run_virtual(generated("plain", [], one_way_s=one_way_s))
    lied_to = run_virtual(generated("cosine", [LIES[name]], one_way_s=one_way_s))
    assert lied_to.token_ids == EXPECTED
    assert lied_to.seconds <= 1.02 * plain.seconds + PASS_S


def test_all_liars_together(plain_s: float) -> None:
    lied_to = run_virtual(generated("cosine", list(LIES.values())))
    assert lied_to.token_ids == EXPECTED
    assert lied_to.seconds <= 1.02 * plain_s + PASS_S


@pytest.mark.parametrize("prompt_nll", quick_first([0.0, math.log(VOCAB_TOKENS)]))
@pytest.mark.parametrize("name", quick_first(LIES, 3, checked=6))
def test_an_honest_drafter_beside_a_liar_still_helps(name: str, prompt_nll: float, plain_s: float) -> None:
    generation = run_virtual(generated("cosine", [LIES[name]], honest=1, prompt_nll=prompt_nll))
    assert generation.token_ids == EXPECTED
    assert generation.seconds < plain_s / 1.3
