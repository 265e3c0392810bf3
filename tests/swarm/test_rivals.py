"""The synchronous rivals: the target's own text whatever drafters do, in less time than without them."""

import asyncio
import random
from functools import cache, partial
from typing import Any, Final

import pytest

from cosine_lab.emulation.virtual_loop import run_virtual
from cosine_lab.rivals import ALL_STRATEGIES
from cosine_lab.rivals.cosine_paper import BatchDirector, CosinePaper, CosinePaperOptions
from cosine_lab.rivals.rounds import SteppedKind
from cosine_lab.rivals.specinfer import SpecInfer, SpecInferOptions
from cosine_lab.rivals.speculative import Speculative, SpeculativeOptions
from cosine_lab.rivals.spin import Spin, SpinDirector, SpinOptions
from cosine_lab.simulation.swarm import VERIFY_CURVE, SimulatedSwarm
from cosine_p2p.request.results import Generation
from cosine_p2p.strategy.base import StrategyKind
from cosine_protocol.request import Sampling
from tests.swarm.reference import assert_freed, draft_engine, plain_stream, prompt_of, target_engine
from tests.thoroughness import quick_first

TOKENS: Final = 40
RIVALS: Final = ("speculative", "specinfer", "spin", "cosine-paper")
PROMPT: Final = prompt_of(random.Random("rivals"))
DRAFT_S: Final = 0.006
TUNED: Final = {
    "a chain of three by the second drafter": partial(
        Speculative, options=SpeculativeOptions(draft_tokens=3, author=2)
    ),
    "trees of two named drafters": partial(
        SpecInfer, options=SpecInferOptions(authors=(1, 3), depth_tokens=4, width_nodes=4, max_nodes=20)
    ),
    "every drafter's tree": partial(SpecInfer, options=SpecInferOptions(drafters=4)),
    "much exploration": partial(Spin, options=SpinOptions(explore_rounds=3, exploit_rounds=3)),
    "fusion with own branches": partial(
        CosinePaper, options=CosinePaperOptions(drafters=3, width_nodes=2, draft_tokens=5)
    ),
    "fusion of one": partial(CosinePaper, options=CosinePaperOptions(drafters=1)),
}


async def generated(
    kind: StrategyKind,
    *,
    fidelities: tuple[float, ...] = (),
    one_way_s: float = 0.001,
    temperature: float = 0.0,
    deaths_s: tuple[float, ...] = (),
    tokens: int = TOKENS,
) -> Generation:
    """One request; the first drafters die after `deaths_s`."""
    async with SimulatedSwarm(one_way_s=one_way_s) as swarm:
        await swarm.verifier(target_engine(), is_stepped=True)
        drafters = [
            await swarm.drafter(draft_engine(fidelity, number), domain=f"d{number}")
            for number, fidelity in enumerate(fidelities)
        ]
        client = await swarm.client(strategy=kind.name, strategies={kind.name: kind}, timeout_s=60.0)
        loop = asyncio.get_running_loop()
        running = asyncio.ensure_future(
            client.generate(PROMPT, max_new_tokens=tokens, temperature=temperature, seed=3)
        )
        began_s = loop.time()
        for drafter, death_s in zip(drafters, deaths_s, strict=False):
            await asyncio.sleep(max(0.0, began_s + death_s - loop.time()))
            await drafter.kill()
        generation = await running
        await assert_freed(swarm)
        return generation


@cache
def expected(temperature: float) -> tuple[int, ...]:
    return plain_stream(PROMPT, Sampling(temperature=temperature, seed=3), tokens=TOKENS)


def seconds(kind: StrategyKind, *, tokens: int = 96, **options: Any) -> float:
    return run_virtual(generated(kind, tokens=tokens, **options)).seconds


def made(make: Any) -> StrategyKind:
    return SteppedKind(name="tuned", make=make)


@pytest.mark.parametrize("name", RIVALS)
@pytest.mark.parametrize("one_way_s", quick_first([0.01, 0.0, 0.001, 0.05, 0.15]))
@pytest.mark.parametrize("temperature", quick_first([0.8, 0.0]))
def test_the_text_is_the_targets_own(name: str, one_way_s: float, temperature: float) -> None:
    for fidelities in ((), (0.8,), (0.9, 0.4), (1.0, 0.0, 0.6, 0.8)):
        run = generated(ALL_STRATEGIES[name], fidelities=fidelities, one_way_s=one_way_s, temperature=temperature)
        assert run_virtual(run).token_ids == expected(temperature)


@pytest.mark.parametrize("named", TUNED)
@pytest.mark.parametrize("one_way_s", quick_first([0.02, 0.001]))
@pytest.mark.parametrize("temperature", quick_first([0.8, 0.0]))
def test_options_change_the_time_alone(named: str, one_way_s: float, temperature: float) -> None:
    for fidelities in ((0.7,), (0.9, 0.4, 0.7, 0.2)):
        run = generated(made(TUNED[named]), fidelities=fidelities, one_way_s=one_way_s, temperature=temperature)
        assert run_virtual(run).token_ids == expected(temperature)


@pytest.mark.parametrize("name", RIVALS)
@pytest.mark.parametrize("temperature", quick_first([0.8, 0.0]))
@pytest.mark.parametrize(
    "deaths_s", quick_first([(0.1, 0.3), (0.0, 0.0, 0.0), (0.2, 0.21, 0.4), (0.333, 0.5, 0.7)])
)
def test_drafters_that_vanish_change_the_time_alone(
    name: str, temperature: float, deaths_s: tuple[float, ...]
) -> None:
    for one_way_s in (0.001, 0.03):
        run = generated(
            ALL_STRATEGIES[name],
            fidelities=(0.9, 0.6, 0.8),
            one_way_s=one_way_s,
            temperature=temperature,
            deaths_s=deaths_s,
        )
        generation = run_virtual(run)
        assert generation.token_ids == expected(temperature)
        assert generation.seconds < 2.0 * TOKENS * (VERIFY_CURVE.seconds(1) + 2 * one_way_s)


@pytest.mark.parametrize("name", RIVALS)
def test_two_perfect_drafters_nearby_pay(name: str) -> None:
    plain_s = seconds(ALL_STRATEGIES["plain"])
    assert seconds(ALL_STRATEGIES[name], fidelities=(1.0, 1.0)) < plain_s / 2.0


def test_a_fixed_drafter_is_the_only_one_asked() -> None:
    kind = made(partial(Speculative, options=SpeculativeOptions(author=2)))
    generation = run_virtual(generated(kind, fidelities=(0.9, 0.9, 0.9)))
    assert len(generation.drafters) == 1


@pytest.mark.thorough
def test_one_good_drafter_among_bad_ones_is_found() -> None:
    """Speculation fixed to the good one, in hindsight, sets the mark; selection costs some of it."""
    fidelities = (0.0, 0.1, 0.9, 0.0)
    best_s = min(
        seconds(made(partial(Speculative, options=SpeculativeOptions(author=author))), fidelities=fidelities)
        for author in range(1, 5)
    )
    for name in ("specinfer", "spin", "cosine-paper"):
        assert seconds(ALL_STRATEGIES[name], fidelities=fidelities) < 2.0 * best_s
    plain_s = seconds(ALL_STRATEGIES["plain"])
    assert seconds(ALL_STRATEGIES["spin"], fidelities=fidelities) < plain_s


async def crowd(kind: StrategyKind, *, requests: int) -> list[Generation]:
    async with SimulatedSwarm(one_way_s=0.001) as swarm:
        await swarm.verifier(target_engine(), is_stepped=True)
        for number, fidelity in enumerate((0.9, 0.8)):
            await swarm.drafter(draft_engine(fidelity, number), domain=f"d{number}")
        client = await swarm.client(strategy=kind.name, strategies={kind.name: kind}, timeout_s=60.0)
        prompts = [prompt_of(random.Random(number)) for number in range(requests)]
        runs = [client.generate(prompt, max_new_tokens=TOKENS) for prompt in prompts]
        return list(await asyncio.gather(*runs))


@pytest.mark.parametrize(
    "make",
    [
        partial(Spin, director=SpinDirector(places=2)),
        partial(
            CosinePaper,
            director=BatchDirector(
                draft_s=lambda requests, longest: longest * DRAFT_S,
                verify_s=lambda requests, total: VERIFY_CURVE.seconds(requests + total),
                most=12,
            ),
        ),
    ],
    ids=["spin", "cosine-paper"],
)
def test_requests_that_share_a_director_keep_their_texts(make: Any) -> None:
    generations = run_virtual(crowd(made(make), requests=6))
    for number, generation in enumerate(generations):
        prompt = prompt_of(random.Random(number))
        assert generation.token_ids == plain_stream(prompt, Sampling(), tokens=TOKENS)
