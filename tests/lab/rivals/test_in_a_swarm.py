"""The papers' designs on real services: the target's own text whatever fails, and what they bring."""

import asyncio
import random
from functools import cache, partial
from typing import Any, Final

import pytest

from cosine_lab.emulation.virtual_loop import run_virtual
from cosine_lab.rivals import ALL_STRATEGIES, RIVALS
from cosine_lab.rivals.cosine_paper import BatchDirector, CosinePaper
from cosine_lab.rivals.dsi_parallel import DsiParallel, DsiParallelOptions
from cosine_lab.rivals.rounds import SteppedKind
from cosine_lab.rivals.speculative import Speculative, SpeculativeOptions
from cosine_lab.rivals.spin import Spin, SpinDirector
from cosine_lab.simulation.swarm import VERIFY_CURVE, Member, SimulatedSwarm
from cosine_lab.simulation.verifiers import Policy
from cosine_node.engine.curve import CostCurve
from cosine_p2p.request.results import Generation
from cosine_p2p.strategy.base import StrategyKind
from cosine_protocol.errors import GenerationFailed
from cosine_protocol.request import Sampling
from tests.swarm.reference import assert_freed, draft_engine, plain_stream, prompt_of, target_engine
from tests.thoroughness import quick_first, soak_rest

TOKENS: Final = 64
PROMPT: Final = prompt_of(random.Random("rivals"))
UNAIDED: Final = Policy(keeps_account=False, drops_costly_nodes=False)
SLOW_CURVE: Final = CostCurve(((1, 0.15), (32, 0.2)))
DRAFT_S: Final = 0.006


def stepped(make: Any, *, verifiers: int | None = None) -> StrategyKind:
    return SteppedKind(name="tuned", make=make, verifiers=verifiers)


def parallel(*, verifiers: int = 2, **options: Any) -> StrategyKind:
    return stepped(partial(DsiParallel, options=DsiParallelOptions(**options)), verifiers=verifiers)


async def generated(
    kind: StrategyKind,
    *,
    fidelities: tuple[float, ...] = (0.8,),
    one_way_s: float = 0.005,
    curves: tuple[CostCurve, ...] = (VERIFY_CURVE, VERIFY_CURVE),
    kill_drafters_s: float | None = None,
    kill_verifiers_s: tuple[float | None, ...] = (None, None),
    stall_first_s: float | None = None,
    temperature: float = 0.0,
    eos: tuple[int, ...] = (),
) -> Generation:
    """One request in a swarm of its own, some of whose peers vanish at a time."""
    async with SimulatedSwarm(one_way_s=one_way_s, eos=eos) as swarm:
        verifiers = [
            await swarm.verifier(
                target_engine(), curve=curve, policy=UNAIDED, is_stepped=isinstance(kind, SteppedKind)
            )
            for curve in curves
        ]
        drafters = [await swarm.drafter(draft_engine(f, n), domain=f"d{n}") for n, f in enumerate(fidelities)]
        client = await swarm.client(strategies={kind.name: kind}, strategy=kind.name, timeout_s=60.0)
        doomed = [*zip(verifiers, kill_verifiers_s, strict=False), *((d, kill_drafters_s) for d in drafters)]
        kills = [asyncio.ensure_future(_kill(member, at_s)) for member, at_s in doomed if at_s is not None]
        if stall_first_s is not None:
            kills.append(asyncio.ensure_future(_stall(verifiers[0], stall_first_s)))
        generation = await client.generate(PROMPT, max_new_tokens=TOKENS, temperature=temperature, seed=11)
        await asyncio.gather(*kills)
        await assert_freed(swarm, within_s=3.0 if stall_first_s is None else 25.0)
        return generation


async def _stall(member: Member, at_s: float) -> None:
    """The pass under way or the next ends twenty seconds later."""
    await asyncio.sleep(at_s)
    member.machine.stalled_until_s = at_s + 20.0


async def _kill(member: Member, at_s: float) -> None:
    await asyncio.sleep(at_s)
    await member.kill()


def expected(temperature: float = 0.0, eos: tuple[int, ...] = ()) -> tuple[int, ...]:
    return plain_stream(PROMPT, Sampling(temperature=temperature, seed=11), tokens=TOKENS, eos=eos)


@cache
def plain_s(one_way_s: float) -> float:
    return run_virtual(generated(ALL_STRATEGIES["plain"], fidelities=(), one_way_s=one_way_s)).seconds


def speedup(kind: StrategyKind, one_way_s: float = 0.005, **scene: Any) -> float:
    return plain_s(one_way_s) / run_virtual(generated(kind, one_way_s=one_way_s, **scene)).seconds


@pytest.mark.parametrize("name", RIVALS)
@pytest.mark.parametrize("fidelities", quick_first([(0.3, 0.9), (), (0.0,), (1.0, 0.0, 0.6, 0.8)]))
@pytest.mark.parametrize("one_way_s", quick_first([0.005, 0.0, 0.05]))
@pytest.mark.parametrize("temperature", quick_first([0.8, 0.0]))
def test_tokens_are_those_of_plain_decoding(
    name: str, temperature: float, one_way_s: float, fidelities: tuple[float, ...]
) -> None:
    run = generated(ALL_STRATEGIES[name], fidelities=fidelities, one_way_s=one_way_s, temperature=temperature)
    assert run_virtual(run).token_ids == expected(temperature)


@pytest.mark.parametrize("name", RIVALS)
@pytest.mark.parametrize("place", quick_first([30, 2, 63], checked=2))
def test_an_end_token_ends_every_verifier(name: str, place: int) -> None:
    eos = (expected()[place],)
    generation = run_virtual(generated(ALL_STRATEGIES[name], fidelities=(0.9,), eos=eos))
    assert generation.token_ids == expected(eos=eos)
    assert generation.finish_reason == "eos"


@pytest.mark.parametrize("name", RIVALS)
@pytest.mark.parametrize("at_s", soak_rest([0.5, 0.0, 0.1, 1.0]))
def test_drafters_that_vanish_cost_only_time(name: str, at_s: float) -> None:
    generation = run_virtual(generated(ALL_STRATEGIES[name], fidelities=(0.8, 0.8), kill_drafters_s=at_s))
    assert generation.token_ids == expected()
    assert generation.seconds < 1.5 * plain_s(0.005)


@pytest.mark.thorough
@pytest.mark.parametrize("name", RIVALS)
@pytest.mark.parametrize("at_s", soak_rest([0.5, 0.0, 0.1, 1.0]))
@pytest.mark.parametrize("slot", [0, 1])
def test_one_verifier_of_two_is_enough(name: str, slot: int, at_s: float) -> None:
    kills = (at_s, None) if slot == 0 else (None, at_s)
    generation = run_virtual(generated(ALL_STRATEGIES[name], kill_verifiers_s=kills))
    assert generation.token_ids == expected()
    assert generation.seconds < 1.5 * plain_s(0.005) + 2.0


def test_a_verifier_that_stalls_leaves_its_work_to_the_other() -> None:
    """Long before the session gives it up."""
    generation = run_virtual(generated(parallel(), stall_first_s=0.5))
    assert generation.token_ids == expected()
    assert generation.seconds < 1.25 * plain_s(0.005) + 1.1


@pytest.mark.parametrize("name", RIVALS)
def test_no_verifier_is_not(name: str) -> None:
    async def run() -> float:
        with pytest.raises(GenerationFailed, match="was lost"):
            await generated(ALL_STRATEGIES[name], kill_verifiers_s=(0.4, 0.6))
        return asyncio.get_running_loop().time()

    assert run_virtual(run()) < 10


@pytest.mark.parametrize("slow_first", [True, False])
def test_a_slow_verifier_beside_a_fast_one_changes_no_token_and_holds_up_little(slow_first: bool) -> None:
    curves = (SLOW_CURVE, VERIFY_CURVE) if slow_first else (VERIFY_CURVE, SLOW_CURVE)
    generation = run_virtual(generated(parallel(), curves=curves))
    assert generation.token_ids == expected()
    alone = run_virtual(generated(parallel(verifiers=1), curves=(SLOW_CURVE,)))
    assert generation.seconds < 0.75 * alone.seconds


def test_two_verifiers_beat_one_and_one_serves_too() -> None:
    one = speedup(parallel(verifiers=1, lookahead_tokens=3))
    two = speedup(parallel(verifiers=2, lookahead_tokens=3))
    assert two > 1.05 * one > 1.5
    assert run_virtual(generated(parallel(), curves=(VERIFY_CURVE,))).token_ids == expected()


def test_going_at_once_beats_waiting_for_a_whole_lookahead() -> None:
    assert speedup(parallel(is_eager=True)) > speedup(parallel(is_eager=False))


@pytest.mark.parametrize("name", ["speculative", "specinfer", "spin", "cosine-paper", "pipeinfer"])
def test_good_drafters_nearby_pay(name: str) -> None:
    assert speedup(ALL_STRATEGIES[name], 0.001, fidelities=(1.0, 1.0)) > 1.9


def test_a_fixed_drafter_is_the_only_one_asked() -> None:
    kind = stepped(partial(Speculative, options=SpeculativeOptions(author=2)))
    generation = run_virtual(generated(kind, fidelities=(0.9, 0.9, 0.9)))
    assert len(generation.drafters) == 1


def test_one_good_drafter_among_bad_ones_is_found() -> None:
    """Speculation fixed to the good one, in hindsight, sets the mark; selection costs some of it."""
    scene: dict[str, Any] = {"fidelities": (0.0, 0.1, 0.9, 0.0), "one_way_s": 0.001}
    known = stepped(partial(Speculative, options=SpeculativeOptions(author=3)))
    for name in ("specinfer", "spin", "cosine-paper"):
        assert speedup(ALL_STRATEGIES[name], **scene) > 0.5 * speedup(known, **scene)


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
    prompts = [prompt_of(random.Random(number)) for number in range(6)]
    kind = stepped(make)

    async def run() -> list[Generation]:
        async with SimulatedSwarm(one_way_s=0.001) as swarm:
            await swarm.verifier(target_engine(), is_stepped=True)
            for number, fidelity in enumerate((0.9, 0.8)):
                await swarm.drafter(draft_engine(fidelity, number), domain=f"d{number}")
            client = await swarm.client(strategy=kind.name, strategies={kind.name: kind}, timeout_s=60.0)
            return list(await asyncio.gather(*(client.generate(one, max_new_tokens=40) for one in prompts)))

    for prompt, generation in zip(prompts, run_virtual(run()), strict=True):
        assert generation.token_ids == plain_stream(prompt, Sampling(), tokens=40)
