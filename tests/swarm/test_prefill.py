"""A prompt over slow lines takes little longer than its activations: passes are sent while others are computed."""

import asyncio
import random

import pytest

from cosine_lab.emulation.virtual_loop import run_virtual
from cosine_lab.simulation.stages import TOKEN_BYTES
from cosine_protocol.request import Sampling
from tests.swarm.chain_swarm import ChainSwarm
from tests.swarm.reference import plain_stream, prompt_of


def first_token_s(*, prompt_tokens: int, mbit: float, prompts: int = 2) -> list[float]:
    """The time to the first token of prompts one after the other, over three stages that send at such a rate."""

    async def run() -> list[float]:
        swarm = ChainSwarm.make(uplink_bits_per_s=1e6 * mbit)
        async with swarm.swarm:
            for part in range(3):
                await swarm.stage(f"{part}", part, parts=3)
            await swarm.head()
            client = await swarm.swarm.client(timeout_s=900.0)
            found = []
            for number in range(prompts):
                prompt, began_s = prompt_of(random.Random(number), prompt_tokens), asyncio.get_running_loop().time()
                done = await client.generate(prompt, strategy="plain", max_new_tokens=1, seed=1)
                assert done.token_ids == plain_stream(prompt, Sampling(seed=1), tokens=1)
                found.append(asyncio.get_running_loop().time() - began_s)
            return found

    return run_virtual(run())


def line_s(*, prompt_tokens: int, mbit: float) -> float:
    """What the activations of a prompt take over one line."""
    return prompt_tokens * TOKEN_BYTES * 8 / (1e6 * mbit)


@pytest.mark.parametrize(("mbit", "more"), [(10.0, 1.1), (100.0, 1.35)])
def test_a_prompt_takes_little_longer_than_its_activations_over_one_line(mbit: float, more: float) -> None:
    _, then_s = first_token_s(prompt_tokens=1000, mbit=mbit)
    assert then_s < more * line_s(prompt_tokens=1000, mbit=mbit) + 0.2
