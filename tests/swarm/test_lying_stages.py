"""A stage that lies costs its head one text, in a whole swarm in virtual time; then the texts are the target's."""

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import Final

import pytest

from cosine_lab.emulation.virtual_loop import run_virtual
from cosine_p2p.client import AsyncClient
from cosine_protocol.errors import GenerationFailed
from cosine_protocol.request import Sampling
from tests.swarm.chain_swarm import ChainSwarm
from tests.swarm.reference import plain_stream, prompt_of

PROMPT: Final = prompt_of(random.Random(1))
TOKENS: Final = 24
PARTS: Final = 3


def play(scene: Callable[[ChainSwarm], Awaitable[None]]) -> None:
    async def run() -> None:
        swarm = ChainSwarm.make()
        async with swarm.swarm:
            await scene(swarm)

    run_virtual(run())


async def is_right(swarm: ChainSwarm, client: AsyncClient, seed: int) -> bool:
    """One text, and whether it is the target's; its check has ended then."""
    done = await client.generate(PROMPT, strategy="plain", max_new_tokens=TOKENS, temperature=0.8, seed=seed)
    assert swarm.checks is not None
    await swarm.checks.idle()
    return done.token_ids == plain_stream(PROMPT, Sampling(temperature=0.8, seed=seed), tokens=TOKENS)


@pytest.mark.parametrize("part", range(PARTS))
def test_a_stage_that_lies_writes_one_wrong_text(part: int) -> None:
    async def scene(swarm: ChainSwarm) -> None:
        for holder in range(3):
            for each in range(PARTS):
                # It says to be the fastest.
                is_liar = (holder, each) == (0, part)
                await swarm.stage(
                    f"{holder}{each}", each, parts=PARTS, lies=is_liar, pass_s=0.01 if is_liar else 0.02
                )
        await swarm.head()
        client = await swarm.swarm.client(audit=0.0)
        found = [await is_right(swarm, client, seed) for seed in range(8)]
        assert found == [False, *[True] * 7]
        assert swarm.source is not None
        disputes, now_s = swarm.source.disputes, asyncio.get_running_loop().time()
        assert disputes.set_aside(now_s) == {f"0{part}"} and not disputes.open(now_s)
        assert f"0{part}" not in swarm.chosen

    play(scene)


def test_where_two_disagree_and_nobody_else_holds_their_layers_requests_say_so() -> None:
    async def scene(swarm: ChainSwarm) -> None:
        await swarm.stage("first", 0)
        await swarm.stage("liar", 1, lies=True, pass_s=0.01)
        await swarm.stage("honest", 1)
        await swarm.head()
        client = await swarm.swarm.client(audit=0.0)
        assert not await is_right(swarm, client, 0)
        sentence = "Stages honest and liar disagree about layers 32:64 of 64, and nobody else holds them"
        with pytest.raises(GenerationFailed, match=sentence):
            await is_right(swarm, client, 1)

    play(scene)
