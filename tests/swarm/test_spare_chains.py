"""A second chain that is kept warm goes on with a long text at once where a stage of the first one dies."""

import asyncio
import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import pytest

from cosine_lab.emulation.letter_codec import LetterCodec
from cosine_lab.emulation.scripted_engine import ScriptedEngine
from cosine_lab.emulation.virtual_loop import run_virtual
from cosine_lab.simulation import workload
from cosine_node.chains.spare_chain import LEAST_TOKENS
from cosine_protocol.request import Sampling
from tests.swarm.chain_swarm import ChainSwarm
from tests.swarm.reference import VOCAB_TOKENS, plain_stream, prompt_of

CONTEXT_TOKENS: Final = 16_384


@dataclass(frozen=True, slots=True, kw_only=True)
class Failover:
    """The longest silence after a stage had died, the tokens computed ahead, and the stages at the end."""

    silence_s: float
    fed_tokens: int
    chosen: list[str]


def failed_over(
    *,
    prompt_tokens: int = 480,
    is_warm: bool = True,
    part: int = 0,
    tokens: int = 120,
    dies_after: int = 80,
    holders: Sequence[int] = (2, 2),
    dies_first: str = "",
    uplink_bits_per_s: float = math.inf,
) -> Failover:
    """A text in whose middle the stage of a part dies, each of which has so many holders; the text is compared."""
    prompt, sampling = prompt_of(random.Random(1), prompt_tokens), Sampling(temperature=0.8, seed=1)

    async def run() -> Failover:
        swarm = ChainSwarm.make(context_tokens=CONTEXT_TOKENS, uplink_bits_per_s=uplink_bits_per_s)
        async with swarm.swarm:
            for each, count in enumerate(holders):
                for number in range(count):
                    await swarm.stage(f"{each} {number}", each)
            await swarm.head(is_warm=is_warm)
            client = await swarm.swarm.client(timeout_s=600.0)
            started = await client.start(
                prompt, strategy="plain", max_new_tokens=tokens, temperature=sampling.temperature, seed=1
            )
            loop, came, died_s, last_s, silence_s = asyncio.get_running_loop(), 0, 0.0, 0.0, 0.0
            async for chunk in started.chunks():
                came += len(chunk.token_ids)
                if died_s:
                    silence_s, last_s = max(silence_s, loop.time() - last_s), loop.time()
                elif came >= dies_after:
                    if dies_first:
                        swarm.stages[dies_first].kill()
                        await asyncio.sleep(1.0)
                    swarm.stages[swarm.chosen[part]].kill()
                    died_s = last_s = loop.time()
            alone = ScriptedEngine(vocab_tokens=VOCAB_TOKENS, context_tokens=CONTEXT_TOKENS)
            prompt_ids = LetterCodec().encode(prompt)
            assert started.result().token_ids == workload.plain_stream(
                alone, prompt_ids, sampling, tokens=tokens, eos=()
            )
            fed_tokens = 0 if swarm.spare is None else swarm.spare.fed_tokens
            return Failover(silence_s=silence_s, fed_tokens=fed_tokens, chosen=swarm.chosen)

    return run_virtual(run())


@pytest.mark.parametrize("part", range(2))
def test_a_text_goes_on_after_one_pass_where_a_second_chain_was_warm(part: int) -> None:
    cold, warm = (failed_over(part=part, is_warm=is_warm) for is_warm in (False, True))
    # A chain is set up and 560 tokens are fed, or the last ones are.
    assert cold.silence_s > 0.5
    assert warm.silence_s < 0.3


def test_a_part_that_one_stage_alone_holds_computes_for_both_chains() -> None:
    assert failed_over(holders=(1, 2), part=1).silence_s < 0.3


def test_nothing_is_computed_ahead_where_nobody_else_holds_anything_or_the_text_is_short() -> None:
    async def fed_of(holders: int, prompt_tokens: int) -> int:
        swarm = ChainSwarm.make()
        async with swarm.swarm:
            for number in range(2 * holders):
                await swarm.stage(f"{number}", number % 2)
            await swarm.head(is_warm=True)
            client = await swarm.swarm.client()
            await client.generate(prompt_of(random.Random(1), prompt_tokens), max_new_tokens=40)
            assert swarm.spare is not None
            return swarm.spare.fed_tokens

    assert run_virtual(fed_of(1, 300)) == 0
    assert run_virtual(fed_of(2, LEAST_TOKENS - 40)) == 0
    assert run_virtual(fed_of(2, LEAST_TOKENS)) > 0


def test_a_second_chain_that_was_lost_is_replaced_and_a_cold_one_serves_meanwhile() -> None:
    """Its stage dies a second before that of the first chain: what is left is one holder of each part."""
    found = failed_over(part=0, holders=(3, 3), dies_first="1 1")
    assert found.silence_s < 2.0


def test_the_second_chain_is_as_warm_after_the_first_one_is_lost_again() -> None:
    async def run() -> list[float]:
        swarm = ChainSwarm.make()
        async with swarm.swarm:
            for part in range(2):
                for number in range(3):
                    await swarm.stage(f"{part} {number}", part)
            await swarm.head(is_warm=True)
            client = await swarm.swarm.client(timeout_s=600.0)
            prompt = prompt_of(random.Random(1), 480)
            started = await client.start(prompt, strategy="plain", max_new_tokens=200, temperature=0.8, seed=1)
            loop, came, last_s, silences_s = asyncio.get_running_loop(), 0, 0.0, [0.0]
            async for chunk in started.chunks():
                came += len(chunk.token_ids)
                silences_s[-1] = max(silences_s[-1], loop.time() - last_s)
                last_s = loop.time()
                if came in (60, 160):
                    swarm.stages[swarm.chosen[0]].kill()
                    silences_s.append(0.0)
            expected = plain_stream(prompt, Sampling(temperature=0.8, seed=1), tokens=200)
            assert started.result().token_ids == expected
            return silences_s[1:]

    assert max(run_virtual(run())) < 0.3
