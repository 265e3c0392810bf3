"""The asynchronous rivals on real services: the target's own text whatever fails, and what they bring."""

import asyncio
import random
from functools import cache
from typing import Any, Final

import pytest

from cosine_lab.emulation.virtual_loop import run_virtual
from cosine_lab.rivals import ALL_STRATEGIES
from cosine_lab.rivals.dsi_parallel import DsiParallel, DsiParallelOptions
from cosine_lab.rivals.rounds import SteppedKind
from cosine_lab.simulation.swarm import VERIFY_CURVE, Member, SimulatedSwarm
from cosine_lab.simulation.verifiers import Policy
from cosine_node.engine.curve import CostCurve
from cosine_p2p.request.results import Generation
from cosine_p2p.strategy.base import (
    Action,
    Committed,
    DrafterStarted,
    Event,
    RecallDrafter,
    ReleaseDrafter,
    SendAdvance,
    StrategyKind,
)
from cosine_protocol.errors import GenerationFailed
from cosine_protocol.request import Sampling
from tests.swarm.reference import assert_freed, draft_engine, plain_stream, prompt_of, target_engine
from tests.thoroughness import THOROUGH, quick_first

TOKENS: Final = 64
PROMPT: Final = prompt_of(random.Random("rivals"))
RIVALS: Final = ("dsi", "dsi-2", "pipeinfer")
UNAIDED: Final = Policy(keeps_account=False, drops_costly_nodes=False)
SLOW_CURVE: Final = CostCurve(((1, 0.15), (32, 0.2)))


def parallel(*, verifiers: int = 2, **options: Any) -> StrategyKind:
    return SteppedKind(
        name="dsi-2",
        make=lambda root: DsiParallel(root, options=DsiParallelOptions(**options)),
        verifiers=verifiers,
    )


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


@pytest.mark.parametrize("fidelities", quick_first([(0.3, 0.9), (), (0.0,), (0.8,), (1.0,)], 2))
@pytest.mark.parametrize("one_way_s", quick_first([0.005, 0.0, 0.05]))
@pytest.mark.parametrize("temperature", quick_first([0.8, 0.0]))
@pytest.mark.parametrize("name", RIVALS)
def test_tokens_are_those_of_plain_decoding(
    name: str, temperature: float, one_way_s: float, fidelities: tuple[float, ...]
) -> None:
    run = generated(ALL_STRATEGIES[name], fidelities=fidelities, one_way_s=one_way_s, temperature=temperature)
    assert run_virtual(run).token_ids == expected(temperature)


@pytest.mark.parametrize("name", RIVALS)
@pytest.mark.parametrize("place", quick_first([30, 2, 63]))
def test_an_end_token_ends_every_verifier(name: str, place: int) -> None:
    eos = (expected()[place],)
    generation = run_virtual(generated(ALL_STRATEGIES[name], fidelities=(0.9,), eos=eos))
    assert generation.token_ids == expected(eos=eos)
    assert generation.finish_reason == "eos"


@pytest.mark.parametrize("name", RIVALS)
@pytest.mark.parametrize("at_s", quick_first([0.5, 0.0, 0.1, 1.0]))
def test_drafters_that_vanish_cost_only_time(name: str, at_s: float) -> None:
    run = generated(ALL_STRATEGIES[name], fidelities=(0.8, 0.8), kill_drafters_s=at_s)
    generation = run_virtual(run)
    assert generation.token_ids == expected()
    assert generation.seconds < 1.5 * plain_s(0.005)


@pytest.mark.parametrize("name", RIVALS)
@pytest.mark.parametrize("fidelities", quick_first([(0.8,), ()]))
@pytest.mark.parametrize("at_s", quick_first([0.5, 0.0, 0.04, 0.1, 1.0]))
@pytest.mark.parametrize("slot", [0, 1])
def test_one_verifier_of_two_is_enough(name: str, slot: int, at_s: float, fidelities: tuple[float, ...]) -> None:
    kills = (at_s, None) if slot == 0 else (None, at_s)
    generation = run_virtual(generated(ALL_STRATEGIES[name], fidelities=fidelities, kill_verifiers_s=kills))
    assert generation.token_ids == expected()
    assert generation.seconds < 1.5 * plain_s(0.005) + 2.0


@pytest.mark.parametrize("fidelities", quick_first([(0.8,), ()]))
@pytest.mark.parametrize("at_s", quick_first([0.5, 0.1]))
def test_a_verifier_that_stalls_leaves_its_work_to_the_other(at_s: float, fidelities: tuple[float, ...]) -> None:
    """Long before the session gives it up."""
    generation = run_virtual(generated(parallel(), fidelities=fidelities, stall_first_s=at_s))
    assert generation.token_ids == expected()
    assert generation.seconds < 1.25 * plain_s(0.005) + 1.1


@pytest.mark.parametrize("name", RIVALS)
def test_no_verifier_is_not(name: str) -> None:
    async def run() -> float:
        with pytest.raises(GenerationFailed, match="was lost"):
            await generated(ALL_STRATEGIES[name], kill_verifiers_s=(0.4, 0.6))
        return asyncio.get_running_loop().time()

    assert run_virtual(run()) < 10


@pytest.mark.parametrize("is_eager", quick_first([True, False]))
@pytest.mark.parametrize("slow_first", quick_first([True, False]))
def test_a_slow_verifier_beside_a_fast_one_changes_no_token_and_holds_up_little(
    slow_first: bool, is_eager: bool
) -> None:
    curves = (SLOW_CURVE, VERIFY_CURVE) if slow_first else (VERIFY_CURVE, SLOW_CURVE)
    generation = run_virtual(generated(parallel(is_eager=is_eager), curves=curves))
    assert generation.token_ids == expected()
    alone = run_virtual(generated(parallel(verifiers=1, is_eager=is_eager), curves=(SLOW_CURVE,)))
    assert generation.seconds < 0.75 * alone.seconds


def test_a_single_verifier_serves_speculation_parallelism_too() -> None:
    assert run_virtual(generated(parallel(), curves=(VERIFY_CURVE,))).token_ids == expected()


@pytest.mark.parametrize("one_way_s", quick_first([0.005, 0.001, 0.01]))
def test_two_verifiers_beat_one(one_way_s: float) -> None:
    one = speedup(parallel(verifiers=1, lookahead_tokens=3), one_way_s)
    two = speedup(parallel(verifiers=2, lookahead_tokens=3), one_way_s)
    assert two > 1.05 * one > 1.5


@pytest.mark.parametrize("one_way_s", quick_first([0.005, 0.001, 0.01]))
def test_going_at_once_beats_waiting_for_a_whole_lookahead(one_way_s: float) -> None:
    assert speedup(parallel(is_eager=True), one_way_s) > speedup(parallel(is_eager=False), one_way_s)


@pytest.mark.parametrize(
    ("one_way_s", "at_least"),
    [
        (0.005, 1.9),
        *(pytest.param(*case, marks=THOROUGH) for case in ((0.001, 1.9), (0.01, 1.8), (0.025, 1.4))),
    ],
)
def test_continuous_speculation_beats_plain_decoding(one_way_s: float, at_least: float) -> None:
    assert speedup(ALL_STRATEGIES["pipeinfer"], one_way_s) > at_least


class RecallsOften:
    """Decodes plainly and releases and recalls its drafter again and again."""

    def __init__(self, root: bytes) -> None:
        self.starts = 0
        self.follows = False

    def on(self, event: Event, now_s: float) -> list[Action]:
        match event:
            case DrafterStarted():
                self.starts += 1
                self.follows = True
                return []
            case Committed() if self.follows:
                self.follows = False
                advance = SendAdvance(1, event.position, event.tokens)
                return [advance, ReleaseDrafter(1, "for now"), RecallDrafter(1, "at once")]
            case _:
                return []


def test_a_drafter_follows_again_from_the_whole_stream_as_often_as_it_is_recalled() -> None:
    strategies: list[RecallsOften] = []

    def make(root: bytes) -> RecallsOften:
        strategies.append(RecallsOften(root))
        return strategies[-1]

    kind = StrategyKind(name="recalls", make=make)
    assert run_virtual(generated(kind)).token_ids == expected()
    assert strategies[0].starts > 30
