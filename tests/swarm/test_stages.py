"""Tests of models in parts, with stages that refuse, stall, lie or die.

A head finds its stages by their records (`ChainSwarm`), or has them in a ring (`SimulatedSwarm`).
"""

import asyncio
import random
from typing import Any, Final

import pytest

from cosine_lab.simulation.report import RequestEnding, SimulationReport
from cosine_lab.simulation.running import run_scenario
from cosine_lab.simulation.scenario import Scenario
from cosine_node.chains.finder import MAX_DOUBTS
from cosine_node.chains.search import NoChain
from cosine_node.stages.served_chain import IDLE_S
from cosine_protocol.errors import GenerationFailed
from cosine_protocol.request import Sampling
from tests.swarm.chain_swarm import ChainSwarm, in_stages
from tests.swarm.reference import plain_stream, prompt_of
from tests.thoroughness import quick_first, quick_rows

PROMPT: Final = prompt_of(random.Random(1))
TOKENS: Final = 24
QUIET_S: Final = 1.71
"""The time of a text over two stages of 20 ms, 10 ms apart."""


async def text(swarm: ChainSwarm, seed: int = 0, *, verifier: int | None = None) -> float:
    """Return the seconds of one request, to one head if there are several, and check its text."""
    heads = [member.identity.peer_id for member in swarm.swarm.members]
    began_s = asyncio.get_running_loop().time()
    assert await is_right(swarm, seed, verifier=None if verifier is None else heads[verifier])
    return asyncio.get_running_loop().time() - began_s


async def is_right(swarm: ChainSwarm, seed: int, **options: Any) -> bool:
    client = await swarm.swarm.client(**options)
    done = await client.generate(PROMPT, strategy="plain", max_new_tokens=TOKENS, temperature=0.8, seed=seed)
    return done.token_ids == plain_stream(PROMPT, Sampling(temperature=0.8, seed=seed), tokens=TOKENS)


# Stages that refuse, stall, or lie about their speed.

BAD: Final[dict[str, dict[str, Any]]] = {
    "3 s late and hides it": {"late_s": 3.0, "hides": True},
    "refuses": {"refuses": True},
    "announces 1 us": {"late_s": 0.2, "pass_s": 1e-6},
    "gives back": {"gives_back": True},
    "leaves out": {"leaves_out": True},
    "20 s late": {"late_s": 20.0},
    "3 s late": {"late_s": 3.0},
    "0.3 s late": {"late_s": 0.3},
    "0.3 s late and hides it": {"late_s": 0.3, "hides": True},
}


@pytest.mark.parametrize(
    ("kind", "part"),
    # Rows are given back by the last stage alone.
    [
        *quick_rows([(kind, 1) for kind in BAD], 3),
        *quick_rows([(kind, 0) for kind in BAD if "back" not in kind], 0),
    ],
)
@in_stages
async def test_a_bad_stage_is_replaced_and_no_request_fails(swarm: ChainSwarm, kind: str, part: int) -> None:
    for other in range(2):
        await swarm.stage(f"honest {other}", other)
    await swarm.stage("bad", part, **{"pass_s": 0.015, **BAD[kind]})
    await swarm.head()
    assert "bad" in swarm.chosen
    first_s = await text(swarm)
    assert "bad" not in swarm.chosen
    then_s = [await text(swarm, seed) for seed in range(1, 3)]
    assert max(then_s) < 1.01 * QUIET_S
    assert first_s < 2.1 * QUIET_S
    await swarm.still()


@in_stages
async def test_a_stage_that_becomes_slow_in_the_middle_of_a_text_is_replaced(swarm: ChainSwarm) -> None:
    for name, part in (("a0", 0), ("a1", 1), ("b0", 0), ("b1", 1)):
        await swarm.stage(name, part)
    await swarm.head()
    for turn, late_s in enumerate((3.0, 0.3)):
        asking = asyncio.ensure_future(text(swarm, turn))
        await asyncio.sleep(0.8)
        bad = swarm.chosen[turn]
        swarm.stages[bad].conduct.late_s = late_s
        assert await asking < 2.2 * QUIET_S
        assert bad not in swarm.chosen
    # Those two are known to be slow, the others as fast as they are.
    assert await text(swarm, 7) < 1.01 * QUIET_S
    await swarm.still()


@in_stages
async def test_a_long_text_goes_on_after_each_death_of_a_stage(swarm: ChainSwarm) -> None:
    for part in range(2):
        for number in range(3):
            await swarm.stage(f"{part} {number}", part)
    await swarm.head()
    client = await swarm.swarm.client()
    prompt, sampling = prompt_of(random.Random(1), 480), Sampling(temperature=0.8, seed=1)
    started = await client.start(prompt, strategy="plain", max_new_tokens=80, temperature=0.8, seed=1)
    loop, came, silent_s = asyncio.get_running_loop(), 0, 0.0
    last_s = loop.time()
    async for chunk in started.chunks():
        came += len(chunk.token_ids)
        silent_s, last_s = max(silent_s, loop.time() - last_s), loop.time()
        if came in (20, 50):
            swarm.stages[swarm.chosen[came == 50]].kill()
    assert started.result().token_ids == plain_stream(prompt, sampling, tokens=80)
    assert 0.5 < silent_s < 0.7
    await swarm.still()


@in_stages
async def test_a_text_that_no_stage_can_compute_fails_after_a_few_chains(swarm: ChainSwarm) -> None:
    await swarm.stage("first", 0)
    for number in range(6):
        await swarm.stage(f"last {number}", 1, gives_back=True)
    await swarm.head()
    for _ in range(3):
        with pytest.raises(GenerationFailed, match="NaN or infinite logits"):
            await text(swarm)
    opened = sum(stage.service.passes.counts.opened for name, stage in swarm.stages.items() if name != "first")
    assert opened == 1 + MAX_DOUBTS


@in_stages
async def test_a_head_whose_idle_chain_made_room_joins_again_for_work(swarm: ChainSwarm) -> None:
    for part in range(2):
        await swarm.stage(f"only {part}", part, most_chains=1)
    await swarm.head()
    await text(swarm)
    with pytest.raises(NoChain):
        await swarm.head()
    await asyncio.sleep(IDLE_S)
    await swarm.head()
    # Both serve in turn, as long as each has no work for a while when the other has.
    for seed in range(4):
        await asyncio.sleep(IDLE_S)
        assert await text(swarm, seed, verifier=seed % 2) < 1.2 * QUIET_S


# Stages that compute something else.


async def checked(swarm: ChainSwarm, seed: int) -> bool:
    """Return whether a text is correct, after the head has checked its stages."""
    assert swarm.checks is not None
    found = await is_right(swarm, seed)
    await swarm.checks.idle()
    return found


@pytest.mark.parametrize("part", quick_first([2, 0, 1]))
@in_stages
async def test_a_stage_that_lies_writes_one_wrong_text(swarm: ChainSwarm, part: int) -> None:
    for holder in range(3):
        for each in range(3):
            # It says to be the fastest.
            lies = (holder, each) == (0, part)
            await swarm.stage(f"{holder}{each}", each, parts=3, lies=lies, pass_s=0.01 if lies else 0.02)
    await swarm.head()
    assert [await checked(swarm, seed) for seed in range(6)] == [False, *[True] * 5]
    assert swarm.finder is not None
    disputes, now_s = swarm.finder.disputes, asyncio.get_running_loop().time()
    assert disputes.set_aside(now_s) == {f"0{part}"} and not disputes.open(now_s)
    assert f"0{part}" not in swarm.chosen


@in_stages
async def test_where_two_disagree_and_nobody_else_holds_their_layers_requests_say_so(swarm: ChainSwarm) -> None:
    await swarm.stage("first", 0)
    await swarm.stage("liar", 1, lies=True, pass_s=0.01)
    await swarm.stage("honest", 1)
    await swarm.head()
    assert not await checked(swarm, 0)
    sentence = "Stages honest and liar disagree about layers 32:64 of 64, and no other stage holds them"
    with pytest.raises(GenerationFailed, match=sentence):
        await is_right(swarm, 1)


# Rings: several passes of one request under way.


def ring(**options: Any) -> SimulationReport:
    """Requests over three stages of 15 ms in a ring of 200 ms; every token is the target's."""
    asked: dict[str, Any] = {"profile": "15/3", "stages": 3, "drafters": 2, "fidelities": (0.9, 0.7)}
    report = run_scenario(Scenario(**({"max_new_tokens": 16, "requests": 1} | asked | options)))
    assert report.mismatches == 0 and all(result.is_match for result in report.results)
    return report


@pytest.mark.thorough
def test_a_stage_of_a_ring_that_dies_is_replaced_or_its_layers_are_named() -> None:
    faults: dict[str, Any] = {"faults": "kill-stage=1@1", "clients": 2, "max_new_tokens": 40}
    report = ring(stage_copies=2, **faults)
    assert report.violations() == [] and len(report.finished) == 2
    assert sum(result.accepted for result in report.results) > 0
    report = ring(timeout_s=30.0, **faults)
    assert [result.ending for result in report.results] == [RequestEnding.FAILED] * 2
    assert all("are held by no stage" in result.error for result in report.results)
