"""Swarms of stages in which some refuse, stall, die, come back and lie about their speed, while clients ask."""

import asyncio
import random
from collections import Counter
from typing import Any, Final

import pytest

from cosine_lab.emulation.virtual_loop import run_virtual
from cosine_protocol.errors import GenerationFailed
from cosine_protocol.request import Sampling
from tests.swarm.chain_swarm import CURVE, ChainSwarm, Conduct
from tests.swarm.reference import plain_stream, prompt_of
from tests.thoroughness import quick_first

TOKENS: Final = 12
LONGEST_S: Final = 300.0
"""Of virtual time: what takes longer hangs."""
CHECKED_SEEDS: Final = 25
SOAKED_SEEDS: Final = 100
CHUNK: Final = 25
CHUNKS: Final = quick_first(range(0, SOAKED_SEEDS, CHUNK), 0, checked=CHECKED_SEEDS // CHUNK)


def bad_conduct(rng: random.Random) -> dict[str, Any]:
    late_s = rng.choice((0.1, 0.5, 3.0, 20.0))
    return rng.choice(
        (
            {},
            {"late_s": late_s},
            {"late_s": late_s, "hides": True},
            {"refuses": True},
            {"gives_back": True},
            {"leaves_out": True},
        )
    )


async def disturb(swarm: ChainSwarm, rng: random.Random, others: dict[str, int], parts: int) -> None:
    """Change what stages do, let them die and come back; those that are called sound stay so."""
    for _ in range(rng.randint(1, 6)):
        await asyncio.sleep(rng.uniform(0.1, 5.0))
        if not others:
            return
        name = rng.choice(sorted(others))
        stage = swarm.stages[name]
        if stage.is_killed:
            await swarm.stage(name, others[name], parts=parts)
        elif rng.random() < 0.4:
            stage.kill()
        else:
            changed = Conduct(pass_s=stage.conduct.pass_s, fed=stage.conduct.fed, **bad_conduct(rng))
            for field in Conduct.__slots__:
                setattr(stage.conduct, field, getattr(changed, field))


async def ask(swarm: ChainSwarm, rng: random.Random) -> str:
    """How a request ends; its text is compared."""
    await asyncio.sleep(rng.uniform(0.0, 6.0))
    client = await swarm.swarm.client()
    sampling = Sampling(temperature=rng.choice((0.0, 0.8)), seed=rng.randrange(99))
    prompt = prompt_of(rng)
    try:
        done = await client.generate(
            prompt,
            strategy="plain",
            max_new_tokens=TOKENS,
            temperature=sampling.temperature,
            seed=sampling.seed,
        )
    except GenerationFailed:
        return "failed"
    assert done.token_ids == plain_stream(prompt, sampling, tokens=TOKENS)
    return "right"


async def play(seed: int) -> Counter[str]:
    rng = random.Random(seed)
    swarm = ChainSwarm.make()
    async with swarm.swarm, asyncio.timeout(LONGEST_S):
        parts, others = rng.choice((2, 2, 3)), {}
        for part in range(parts):
            await swarm.stage(f"sound {part}", part, parts=parts)
            for copy in range(rng.randint(0, 2)):
                name = f"other {part} {copy}"
                pass_s = rng.choice((CURVE.seconds(1), 0.015, 1e-6))
                await swarm.stage(name, part, parts=parts, pass_s=pass_s, **bad_conduct(rng))
                others[name] = part
        await swarm.head()
        disturbing = asyncio.ensure_future(disturb(swarm, rng, others, parts))
        endings = await asyncio.gather(*(ask(swarm, rng) for _ in range(rng.randint(1, 5))))
        await disturbing
        await swarm.still()
    return Counter(endings)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("first", CHUNKS)
def test_texts_are_right_or_refused_and_nothing_hangs_or_is_left(first: int) -> None:
    endings: Counter[str] = Counter()
    for seed in range(first, first + CHUNK):
        endings += run_virtual(play(seed))
    # One that holds the same layers was always there.
    assert not endings["failed"]
