"""A verifier's own drafter: its plan, equal texts in less time, and their attribution."""

from typing import Any

import pytest

from cosine_engine.base import OutOfPages
from cosine_engine.curve import CostCurve, break_even
from cosine_lab.emulation.machine import InlineRunner
from cosine_lab.emulation.scripted_engine import ScriptedEngine
from cosine_lab.emulation.virtual_loop import run_virtual
from cosine_lab.simulation.swarm import SimulatedHome, SimulatedSwarm
from cosine_node.verifier.home_plan import (
    HomePlan,
    HomeProspect,
    HomeRates,
    plan_home_drafts,
    width_of,
)
from cosine_node.verifier.service import VerifierService
from cosine_p2p.request.origins import HOME_SOURCE, told_origins
from cosine_p2p.request.results import Generation
from tests.scenes import in_virtual_time
from tests.thoroughness import quick_first

TOKENS = 64


class BrokenEngine(ScriptedEngine):
    """A drafter whose passes fail after the second."""

    passes = 0

    def forward(self, rows: Any) -> Any:
        self.passes += 1
        if self.passes > 2:
            raise RuntimeError("the card fell off")
        return super().forward(rows)


class FullEngine(ScriptedEngine):
    """A drafter without free pages."""

    def reserve(self, sequence: int, tokens: int) -> None:
        raise OutOfPages("full")


@in_virtual_time
async def generate(home: ScriptedEngine | None, *, clients: int = 1) -> list[Generation]:
    """The generations of clients at one verifier 100 ms away, with no other drafter."""
    async with SimulatedSwarm(one_way_s=0.05) as swarm:
        member = await swarm.verifier(home=None if home is None else SimulatedHome(home))
        done = []
        for number in range(clients):
            client = await swarm.client(strategy="cosine")
            run = await client.start("hello", max_new_tokens=TOKENS, seed=number)
            sources = {chunk.source async for chunk in run.chunks()}
            done.append(run.result())
            assert (HOME_SOURCE in sources) == bool(done[-1].swarm.home_tokens)
        assert isinstance(member.service, VerifierService)
        assert member.service.counts.home_nodes == sum(each.swarm.home_tokens for each in done)
        assert (member.home_use.passes > 0) == (member.home_use.busy_s > 0.0)
        assert member.home_use.passes > 0 or not member.service.counts.home_nodes
        return done


def test_a_home_drafter_makes_the_same_text_sooner_is_named_and_keeps_nothing() -> None:
    home = ScriptedEngine(fidelity=0.8, drafter_seed=1)
    (plain,), (helped,) = generate(None), generate(home)
    assert home.open_sequences <= 1
    assert helped.token_ids == plain.token_ids
    assert helped.seconds < 0.8 * plain.seconds
    assert helped.swarm.home_tokens > TOKENS // 4 and not helped.swarm.accepted and not helped.swarm.drafters
    assert plain.swarm.home_tokens == 0
    assert sum(origin.tokens for origin in helped.swarm.origins) == helped.usage.completion_tokens
    assert f"verifier's drafter {helped.swarm.home_tokens}" in told_origins(helped.swarm.origins)


def test_a_home_drafter_that_is_always_wrong_costs_little() -> None:
    (plain,), (helped,) = generate(None), generate(ScriptedEngine(fidelity=0.0, drafter_seed=1))
    assert helped.token_ids == plain.token_ids
    assert helped.seconds < 1.1 * plain.seconds


@pytest.mark.parametrize("temperature", quick_first([0.8, 0.0]))
def test_drafts_that_pay_only_under_load_are_found_by_the_passes_under_load(temperature: float) -> None:
    """Under load one token costs almost as much as eight."""
    idle = CostCurve(((1, 0.036), (2, 0.055), (4, 0.062), (8, 0.067)))
    loaded = CostCurve(((1, 0.068), (2, 0.069), (4, 0.070), (8, 0.072)))

    async def run(home: ScriptedEngine | None) -> tuple[Generation, VerifierService]:
        async with SimulatedSwarm() as swarm:
            engine = ScriptedEngine()
            member = await swarm.verifier(
                engine,
                curve=idle,
                runner=InlineRunner(engine, loaded),
                home=None if home is None else SimulatedHome(home, CostCurve(((1, 0.007),))),
            )
            client = await swarm.client()
            done = await client.generate("hello", max_new_tokens=120, temperature=temperature, seed=1)
            assert isinstance(member.service, VerifierService)
            return done, member.service

    plain, _ = run_virtual(run(None))
    helped, service = run_virtual(run(ScriptedEngine(fidelity=0.5, drafter_seed=1)))
    assert helped.token_ids == plain.token_ids
    assert helped.seconds < 0.8 * plain.seconds
    assert service.break_even is not None and service.break_even > 1000 * break_even(loaded)
    # Passes over one token are few where all others are drafted for.
    assert idle.seconds(1) < service.plain_pass_s < 1.05 * loaded.seconds(1)


@pytest.mark.parametrize("engine", [BrokenEngine, FullEngine])
def test_a_home_drafter_that_fails_ends_no_request(engine: type[ScriptedEngine]) -> None:
    home = engine(fidelity=0.8, drafter_seed=1)
    helped = generate(home, clients=2)
    assert [each.token_ids for each in helped] == [each.token_ids for each in generate(None, clients=2)]


# The plan.

TARGET = CostCurve(((1, 0.060), (4, 0.060), (8, 0.066), (16, 0.082), (32, 0.117)))
DRAFTER = CostCurve(((1, 0.006), (8, 0.00625), (16, 0.0075), (32, 0.0099)))


def prospect(
    *, covered: float = 0.0, first: float = 0.5, following: float = 0.5, unread_tokens: int = 1, max_levels: int = 8
) -> HomeProspect:
    return HomeProspect(
        covered=covered,
        rates=HomeRates(first, following),
        unread_tokens=unread_tokens,
        passes_left=50.0,
        max_levels=max_levels,
    )


def plan(*prospects: HomeProspect, slowness: float = 1.0) -> HomePlan:
    slow = CostCurve(tuple((tokens, slowness * seconds) for tokens, seconds in DRAFTER.points))
    return plan_home_drafts(prospects, target_curve=TARGET, drafter_curve=slow, width=width_of(DRAFTER))


SLIGHT, GOOD = prospect(), prospect(first=0.9, following=0.9)


@pytest.mark.parametrize(
    ("prospects", "slowness", "joining", "levels"),
    [
        ([SLIGHT], 1.0, (0,), {2}),
        ([GOOD], 1.0, (0,), {5, 6, 7, 8}),
        ([prospect(first=0.05, following=0.05)], 1.0, (), {0}),
        ([prospect(covered=1.5), prospect(first=0.8)], 1.0, (1,), {1, 2, 3}),
        ([SLIGHT], 10.0, (), {0}),
        ([prospect(unread_tokens=500)], 1.0, (0,), {1, 2}),
        ([prospect(first=0.9, following=0.9, max_levels=1)], 1.0, (0,), {1}),
    ],
    ids=[
        "as deep as it is good",
        "deeper where it is better",
        "none where it is bad",
        "only for whom they do not",
        "none where it is as slow as the target",
        "a text to read is worth it",
        "no more than there is room for",
    ],
)
def test_a_drafter_drafts_as_many_levels_as_bring_more_tokens_a_second(
    prospects: list[HomeProspect], slowness: float, joining: tuple[int, ...], levels: set[int]
) -> None:
    made = plan(*prospects, slowness=slowness)
    assert made.joining == joining and made.levels in levels
