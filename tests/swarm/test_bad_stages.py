"""Stages that refuse, stall or lie about their speed are replaced, and no request fails while another is there."""

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import Any, Final

import pytest

from cosine_lab.emulation.virtual_loop import run_virtual
from cosine_node.chains.search import NoChain
from cosine_node.chains.source import MAX_DOUBTS
from cosine_node.stages.idle_chains import IDLE_S
from cosine_protocol.errors import GenerationFailed
from cosine_protocol.request import Sampling
from tests.swarm.chain_swarm import ChainSwarm
from tests.swarm.reference import plain_stream, prompt_of

PROMPT: Final = prompt_of(random.Random(1))
TOKENS: Final = 24
QUIET_S: Final = 1.71
"""What such a text takes over two stages of 20 ms, 10 ms apart."""


async def text(swarm: ChainSwarm, seed: int = 0, *, verifier: int | None = None) -> float:
    """One request, of one head where there are several, whose text is compared; the seconds that it took."""
    heads = [member.identity.peer_id for member in swarm.swarm.members]
    client = await swarm.swarm.client(verifier=None if verifier is None else heads[verifier])
    began_s = asyncio.get_running_loop().time()
    done = await client.generate(PROMPT, strategy="plain", max_new_tokens=TOKENS, temperature=0.8, seed=seed)
    assert done.token_ids == plain_stream(PROMPT, Sampling(temperature=0.8, seed=seed), tokens=TOKENS)
    return asyncio.get_running_loop().time() - began_s


def play(scene: Callable[[ChainSwarm], Awaitable[None]]) -> None:
    async def run() -> None:
        swarm = ChainSwarm.make()
        async with swarm.swarm:
            await scene(swarm)

    run_virtual(run())


BAD: Final[dict[str, dict[str, Any]]] = {
    "20 s late": {"late_s": 20.0},
    "3 s late": {"late_s": 3.0},
    "3 s late and hides it": {"late_s": 3.0, "hides": True},
    "0.3 s late": {"late_s": 0.3},
    "0.3 s late and hides it": {"late_s": 0.3, "hides": True},
    "announces 1 us": {"late_s": 0.2, "pass_s": 1e-6},
    "refuses": {"refuses": True},
    "gives back": {"gives_back": True},
    "leaves out": {"leaves_out": True},
}


def test_where_nobody_else_holds_its_layers_a_slow_stage_is_waited_for() -> None:
    async def scene(swarm: ChainSwarm) -> None:
        await swarm.stage("first", 0)
        await swarm.stage("slow", 1, late_s=2.0)
        await swarm.head()
        client = await swarm.swarm.client()
        done = await client.generate(PROMPT, strategy="plain", max_new_tokens=3, seed=0)
        assert done.token_ids == plain_stream(PROMPT, Sampling(seed=0), tokens=3)
        assert swarm.stages["slow"].service.counts.opened == 1

    play(scene)


def test_a_stage_that_becomes_slow_in_the_middle_of_a_text_is_replaced() -> None:
    async def scene(swarm: ChainSwarm) -> None:
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

    play(scene)


def test_newcomers_that_claim_to_be_the_fastest_draw_the_head_no_further_once_one_has_lied() -> None:
    async def scene(swarm: ChainSwarm) -> None:
        await swarm.stage("honest 0", 0)
        for number in range(4):
            await swarm.stage(f"honest 1{number}", 1)
        await swarm.stage("liar 0", 1, pass_s=1e-6, late_s=0.3)
        await swarm.head()
        await text(swarm)
        assert swarm.chosen[1].startswith("honest")
        fed = 0
        for number in range(1, 4):
            liar = await swarm.stage(f"liar {number}", 1, pass_s=1e-6, late_s=0.3)
            assert swarm.source is not None
            await swarm.source._look()
            swarm.stages[swarm.chosen[1]].kill()
            assert await text(swarm, number) < 2.1 * QUIET_S
            fed += liar.conduct.fed
        # An honest one was there for each that was lost.
        assert fed == 0

    play(scene)


def test_a_text_that_no_stage_can_compute_fails_and_others_go_on() -> None:
    """Otherwise whoever has such a text would have the head go from chain to chain."""

    async def scene(swarm: ChainSwarm) -> None:
        await swarm.stage("first", 0)
        for number in range(6):
            await swarm.stage(f"last {number}", 1, gives_back=True)
        await swarm.head()
        for _ in range(3):
            with pytest.raises(GenerationFailed, match="NaN or infinite logits"):
                await text(swarm)
        opened = sum(stage.service.counts.opened for name, stage in swarm.stages.items() if name != "first")
        assert opened == 1 + MAX_DOUBTS

    play(scene)


def test_a_head_whose_idle_chain_made_room_for_another_joins_again_when_it_has_work() -> None:
    async def scene(swarm: ChainSwarm) -> None:
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

    play(scene)


def test_two_stages_that_die_at_once_are_both_replaced() -> None:
    async def scene(swarm: ChainSwarm) -> None:
        for name, part in (("a0", 0), ("a1", 1), ("a2", 2), ("b0", 0), ("b1", 1), ("b2", 2)):
            await swarm.stage(name, part, parts=3)
        await swarm.head()
        asking = asyncio.ensure_future(text(swarm))
        await asyncio.sleep(0.8)
        for name in swarm.chosen[:2]:
            swarm.stages[name].kill()
        assert await asking < 2.1 * QUIET_S
        await swarm.still()

    play(scene)


@pytest.mark.parametrize(
    # Rows are given back by the last stage alone.
    ("kind", "part"),
    [(kind, part) for kind in BAD for part in range(2) if part or kind != "gives back"],
)
def test_a_bad_stage_is_replaced_by_the_spare_and_no_request_fails(kind: str, part: int) -> None:
    """It was chosen first, for it announced to be a little faster."""

    async def scene(swarm: ChainSwarm) -> None:
        for other in range(2):
            await swarm.stage(f"honest {other}", other)
        await swarm.stage("bad", part, **{"pass_s": 0.015, **BAD[kind]})
        await swarm.head()
        assert "bad" in swarm.chosen
        first_s = await text(swarm)
        assert "bad" not in swarm.chosen
        then_s = [await text(swarm, seed) for seed in range(1, 4)]
        assert max(then_s) < 1.01 * QUIET_S
        assert first_s < 2.1 * QUIET_S
        await swarm.still()

    play(scene)
