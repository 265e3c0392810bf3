"""The papers' designs on real services: the target's own text with any failure, and a gain from good drafters."""

import asyncio
import random
from functools import cache
from typing import Any, Final

import pytest

from cosine_lab.emulation.virtual_loop import run_virtual
from cosine_lab.rivals import ALL_STRATEGIES, RIVALS
from cosine_lab.rivals.rounds import SteppedKind
from cosine_lab.simulation.swarm import SimulatedMember, SimulatedSwarm
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
    fidelities: tuple[float, ...] = (0.8,),
    one_way_s: float = 0.005,
    kill_drafters_s: float | None = None,
    kill_verifier_s: float | None = None,
    temperature: float = 0.0,
) -> Generation:
    """Return one request to two verifiers and some drafters, which may vanish at a time."""
    async with SimulatedSwarm(one_way_s=one_way_s) as swarm:
        stepped = isinstance(kind, SteppedKind)
        verifiers = [await swarm.verifier(target_engine(), policy=UNAIDED, is_stepped=stepped) for _ in range(2)]
        drafters = [await swarm.drafter(draft_engine(f, n), domain=f"d{n}") for n, f in enumerate(fidelities)]
        client = await swarm.client(strategies={kind.name: kind}, strategy=kind.name, timeout_s=60.0)
        doomed = [(verifiers[0], kill_verifier_s), *((d, kill_drafters_s) for d in drafters)]
        kills = [asyncio.ensure_future(_kill(member, at_s)) for member, at_s in doomed if at_s is not None]
        generation = await client.generate(PROMPT, max_new_tokens=TOKENS, temperature=temperature, seed=11)
        await asyncio.gather(*kills)
        await assert_freed(swarm)
        return generation


async def _kill(member: SimulatedMember, at_s: float) -> None:
    await asyncio.sleep(at_s)
    await member.kill()


def expected(temperature: float = 0.0) -> tuple[int, ...]:
    return plain_stream(PROMPT, Sampling(temperature=temperature, seed=11), tokens=TOKENS)


@cache
def plain_s(one_way_s: float) -> float:
    return run_virtual(generated(ALL_STRATEGIES["plain"], fidelities=(), one_way_s=one_way_s)).seconds


def speedup(kind: StrategyKind, one_way_s: float, **scene: Any) -> float:
    return plain_s(one_way_s) / run_virtual(generated(kind, one_way_s=one_way_s, **scene)).seconds


@pytest.mark.parametrize("name", RIVALS)
@pytest.mark.parametrize("fidelities", quick_first([(0.3, 0.9), (), (1.0, 0.0, 0.6, 0.8)]))
@pytest.mark.parametrize("temperature", quick_first([0.8, 0.0]))
def test_tokens_are_those_of_plain_decoding(name: str, temperature: float, fidelities: tuple[float, ...]) -> None:
    run = generated(ALL_STRATEGIES[name], fidelities=fidelities, temperature=temperature)
    assert run_virtual(run).token_ids == expected(temperature)


@pytest.mark.parametrize("name", RIVALS)
def test_drafters_and_a_verifier_that_vanish_cost_only_time(name: str) -> None:
    run = generated(ALL_STRATEGIES[name], fidelities=(0.8, 0.8), kill_drafters_s=0.5, kill_verifier_s=1.0)
    generation = run_virtual(run)
    assert generation.token_ids == expected()
    assert generation.seconds < 1.5 * plain_s(0.005) + 2.0


@pytest.mark.parametrize("name", ["speculative", "specinfer", "pipeinfer"])
def test_good_drafters_nearby_pay(name: str) -> None:
    assert speedup(ALL_STRATEGIES[name], 0.001, fidelities=(1.0, 1.0)) > 1.9
