"""The papers' designs on real services: the target's own text, and a gain from good drafters."""

import random
from dataclasses import replace
from typing import Final

import pytest

from cosine_lab.emulation.virtual_loop import run_virtual
from cosine_lab.rivals import ALL_STRATEGIES, RIVALS
from cosine_lab.rivals.rounds import SteppedKind
from cosine_lab.simulation.swarm import SimulatedSwarm
from cosine_lab.simulation.verifiers import Policy
from cosine_p2p.request.results import Generation
from cosine_p2p.strategy.base import StrategyKind
from cosine_protocol.request import Sampling
from tests.swarm.reference import assert_freed, draft_engine, plain_stream, prompt_of, target_engine
from tests.thoroughness import quick_first

TOKENS: Final = 64
PROMPT: Final = prompt_of(random.Random("rivals"))
UNAIDED: Final = Policy(keeps_account=False, drops_costly_nodes=False)


async def generated(
    kind: StrategyKind,
    *,
    fidelities: tuple[float, ...],
    one_way_s: float = 0.005,
    temperature: float = 0.0,
) -> Generation:
    """Return one request to a verifier and some drafters."""
    async with SimulatedSwarm(one_way_s=one_way_s) as swarm:
        await swarm.verifier(target_engine(), policy=replace(UNAIDED, is_stepped=isinstance(kind, SteppedKind)))
        for number, fidelity in enumerate(fidelities):
            await swarm.drafter(draft_engine(fidelity, number), domain=f"d{number}")
        client = await swarm.client(strategies={kind.name: kind}, strategy=kind.name, timeout_s=60.0)
        generation = await client.generate(PROMPT, max_new_tokens=TOKENS, temperature=temperature, seed=11)
        await assert_freed(swarm)
        return generation


@pytest.mark.parametrize("name", RIVALS)
@pytest.mark.parametrize("fidelities", quick_first([(0.3, 0.9), (), (1.0, 0.0, 0.6, 0.8)]))
@pytest.mark.parametrize("temperature", quick_first([0.8, 0.0]))
def test_tokens_are_those_of_plain_decoding(name: str, temperature: float, fidelities: tuple[float, ...]) -> None:
    run = generated(ALL_STRATEGIES[name], fidelities=fidelities, temperature=temperature)
    expected = plain_stream(PROMPT, Sampling(temperature=temperature, seed=11), tokens=TOKENS)
    assert run_virtual(run).token_ids == expected


@pytest.mark.parametrize("name", ["speculative", "specinfer", "pipeinfer"])
def test_good_drafters_nearby_pay(name: str) -> None:
    plain, drafted = (
        run_virtual(generated(ALL_STRATEGIES[kind], fidelities=fidelities, one_way_s=0.001)).seconds
        for kind, fidelities in (("plain", ()), (name, (1.0, 1.0)))
    )
    assert plain > 1.9 * drafted
