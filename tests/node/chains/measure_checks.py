"""Measures how soon a head finds a stage that lies, how often it names another one, and what checks cost.

    python -m tests.node.chains.measure_checks --honest 40 --liars 4

The embedded target in three parts, each held by three stages in one process; texts of 48 tokens after prompts of
everyday length, greedy and at temperature 0.8 by turns. A line for each data type has the texts of honest stages,
their checks, and the stages that were found wrong or set aside; a line for each lie, how many liars there were, one
after the other at each place, how many were found, after how many texts at most, how many of these were wrong, and
the honest stages that were found wrong or are set aside. `--cost` tells the time of texts with and without probes.
"""

import argparse
import asyncio
import random
import sys
import time
from collections.abc import Sequence
from typing import Final

import torch

from cosine_node import zoo
from cosine_node.stages.engine import StageModel
from cosine_p2p.text.tokenizer import TextTokenizer
from cosine_p2p.text.tokenizer_files import TokenizerFiles
from cosine_protocol.request import Sampling
from tests.node.chains.checked_heads import TYPES, head_of, load
from tests.node.chains.liars import Lie
from tests.node.chains.measure_traces import PROMPTS
from tests.node.engine.staged import ranges

PARTS: Final = ranges(3, 6, 8)
HOLDERS: Final = 3
TOKENS: Final = 48
SLOTS: Final = 640
MOST_TEXTS: Final = 64
DIFFERENT: Final = 8
HAS_CHOICES_ALONE: Final = 2
"""The last part, of which nothing leaves but choices."""


def prompts(count: int) -> list[tuple[int, ...]]:
    files = TokenizerFiles.read(zoo.location("target"))
    assert files is not None
    codec, rng = TextTokenizer(files.files), random.Random(1)
    return [tuple(codec.encode(" ".join(rng.sample(PROMPTS, 2)))) for _ in range(count)]


def sampling_of(number: int) -> Sampling:
    return Sampling(temperature=0.8 * (number % 2), seed=number)


async def honest(models: Sequence[StageModel], count: int, numerics: str) -> str:
    async with head_of(models, seed=count) as head:
        # Each text is checked, whatever the standing.
        head.checks._chance = lambda: 0.0
        for number, prompt in enumerate(prompts(count)):
            await head.checked(prompt, tokens=TOKENS, sampling=sampling_of(number))
        aside = head.disputes.set_aside(0.0)
        apart = head.disputes.apart(0.0)
        checks = head.checks.checked
        return (
            f"{numerics}: {count} honest texts, {checks} checks, {len(aside)} set aside, {len(apart)} pairs apart"
        )


async def right_texts(models: Sequence[StageModel]) -> list[list[int]]:
    """What the whole model says."""
    async with head_of(models) as head:
        head.checks._chance = lambda: 1.0
        asked = enumerate(prompts(DIFFERENT))
        return [await head.write(prompt, tokens=TOKENS, sampling=sampling_of(n)) for n, prompt in asked]


async def found(
    models: Sequence[StageModel], lie: Lie, liar: int, seed: int, right: Sequence[Sequence[int]]
) -> tuple[bool, int, int, int]:
    """Whether a liar is found, after how many texts, how many were wrong, and the others that suffer."""
    asked = prompts(DIFFERENT)
    wrong = 0
    name = f"stage {liar}"
    async with head_of(models, {liar: lie}, seed=seed) as head:
        texts = 0
        while texts < MOST_TEXTS and name not in head.rejected:
            number = texts % len(right)
            text = await head.checked(asked[number], tokens=TOKENS, sampling=sampling_of(number))
            wrong += text != right[number]
            texts += 1
        others = (head.disputes.set_aside(0.0) | frozenset().union(*head.disputes.apart(0.0))) - {name}
        return name in head.rejected, texts, wrong, len(others)


async def cost(models: Sequence[StageModel], numerics: str) -> str:
    """The time of texts with probes over that without, by turns; none is checked."""
    asked = prompts(4)
    times_s = {True: 0.0, False: 0.0}
    for number, prompt in enumerate(asked * 2):
        is_witnessed = bool(number // len(asked) % 2)
        async with head_of(models) as head:
            head.checks._chance = lambda: 1.0
            await head.open()
            assert head.engine is not None
            if not is_witnessed:
                head.engine.witness = None
            await head.write(prompt, tokens=4)
            began_s = time.perf_counter()
            await head.write(prompt, tokens=TOKENS)
            await head.checks.idle()
            times_s[is_witnessed] += time.perf_counter() - began_s
    return f"{numerics}: with probes a text takes {times_s[True] / times_s[False]:.3f} times as long"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--honest", type=int, default=40)
    parser.add_argument("--liars", type=int, default=1)
    parser.add_argument("--types", default=",".join(TYPES))
    parser.add_argument("--cost", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(1)
    for numerics in options.types.split(","):
        models = load(zoo.location("target"), PARTS, holders=HOLDERS, dtype=TYPES[numerics], slots=SLOTS)
        lines = [asyncio.run(cost(models, numerics))] if options.cost else []
        if not options.cost:
            sys.stdout.write(asyncio.run(honest(models, options.honest, numerics)) + "\n")
            sys.stdout.flush()
            right = asyncio.run(right_texts(models))
            for lie in (each for each in Lie if each is not Lie.NO_WORD):
                places = [
                    place
                    for place in range(HOLDERS)
                    if place != HAS_CHOICES_ALONE or lie in (Lie.NONSENSE, Lie.ONLY_WRITING, Lie.BLAMES)
                ]
                if lie is Lie.BLAMES:
                    places.remove(0)
                results = [
                    asyncio.run(found(models, lie, place, seed, right))
                    for place in places
                    for seed in range(options.liars)
                ]
                lines.append(
                    f"{numerics} {lie.name}: {len(results)} liars, {sum(each[0] for each in results)} found, after "
                    f"{max(each[1] for each in results)} texts at most, "
                    f"{sum(each[2] for each in results)} wrong texts, "
                    f"{sum(each[3] for each in results)} others suffer"
                )
                sys.stdout.write(lines.pop() + "\n")
                sys.stdout.flush()
        for line in lines:
            sys.stdout.write(line + "\n")


if __name__ == "__main__":
    main()
