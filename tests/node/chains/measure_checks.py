"""Measures how soon a head finds a stage that computes something else, and at what cost to it and to honest ones.

    python -m tests.node.chains.measure_checks --honest 40 --liars 4 --threads 1,2,4
    python -m tests.node.chains.measure_checks --honest 0 --liars 0 --faults 32
    python -m tests.node.chains.measure_checks --cost

The embedded target in three parts, each held by three stages in one process; texts of 48 tokens after prompts of
everyday length, of honest stages longer ones, greedy and at temperature 0.8 by turns. Lines for each data type:

- the texts of honest stages, their checks and positions, how far what went over boundaries was apart at most, and
  the stages that were found wrong or set aside; with `--threads` the holders of a part have so many each;
- for each fault and place the texts that were checked, each by a head that knows nobody, in how many the stage was
  found, how many of its tokens others would not have chosen, the median gap, and the honest stages that suffer;
- for each lie how many liars there were, one after the other at each place, how many were found, after how many
  texts at most, how many of these were wrong, and the honest stages that suffer.

`--cost` tells the processor time of texts with and without probes, and what these send.
"""

import argparse
import asyncio
import random
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Final
from unittest.mock import patch

import numpy as np
import torch

from cosine_node import zoo
from cosine_node.chains import checks
from cosine_node.chains.comparison import ChainTrace, Contradiction, apart, contradiction
from cosine_node.chains.remote_chain import RemoteChain
from cosine_node.stages.engine import StageModel
from cosine_node.stages.host import StageHost
from cosine_p2p.text.tokenizer import TextTokenizer
from cosine_p2p.text.tokenizer_files import TokenizerFiles
from cosine_protocol.codec import encode
from cosine_protocol.request import Sampling
from cosine_protocol.stage_messages import PartTrace, Probe, Probed
from tests.node.chains.checked_heads import TYPES, head_of, load
from tests.node.chains.faulty_stages import FAULTS, with_threads
from tests.node.chains.liars import Lie
from tests.node.chains.measure_traces import PROMPTS
from tests.node.engine.staged import ranges

PARTS: Final = ranges(3, 6, 8)
HOLDERS: Final = 3
TOKENS: Final = 48
SLOTS: Final = 640
LONG_LINES: Final = 9
"""Of the prompts of honest texts: what is read is compared as well as what is written, and sooner."""
MOST_TEXTS: Final = 64
DIFFERENT: Final = 8
HAS_CHOICES_ALONE: Final = 2
"""The last part, of which nothing leaves but choices."""


def prompts(count: int, *, lines: int = 2) -> list[tuple[int, ...]]:
    files = TokenizerFiles.read(zoo.location("target"))
    assert files is not None
    codec, rng = TextTokenizer(files.files), random.Random(1)
    return [tuple(codec.encode(" ".join(rng.choices(PROMPTS, k=lines)))) for _ in range(count)]


def sampling_of(number: int) -> Sampling:
    return Sampling(temperature=0.8 * (number % 2), seed=number)


class Seen:
    """What checks have compared: how many positions, choices that differ, and gaps at boundaries."""

    def __init__(self) -> None:
        self.positions = self.choices = self.differing = 0
        self.gaps: list[float] = []
        self.medians: list[float] = []

    def contradiction(
        self, one: ChainTrace, other: ChainTrace, *, sampling: Sampling, numerics: str
    ) -> Contradiction | None:
        """In the place of `comparison.contradiction`, for the first replay of each check."""
        positions = min(one.positions, other.positions)
        self.positions += positions
        both = [
            (ours, theirs)
            for ours, theirs in zip(one.choices, other.choices, strict=False)
            if ours is not None and theirs is not None
        ]
        self.choices += len(both)
        self.differing += sum(ours.token != theirs.token for ours, theirs in both)
        for boundary in {*one.boundaries} & {*other.boundaries}:
            ours, theirs = one.over(boundary), other.over(boundary)
            assert ours is not None and theirs is not None
            of_boundary = apart(ours[:positions], theirs[:positions])
            self.gaps.append(float(of_boundary.max()))
            self.medians.append(float(np.median(of_boundary)))
        return contradiction(one, other, sampling=sampling, numerics=numerics)


@contextmanager
def watched() -> Iterator[Seen]:
    """What the checks within compare."""
    seen = Seen()
    with patch.object(checks, "contradiction", seen.contradiction):
        yield seen


async def honest(
    models: Sequence[StageModel], count: int, numerics: str, threads: Sequence[int], seen: Seen
) -> str:
    """What checks of honest stages find, whose holders have so many threads each."""

    def host_of(number: int, model: StageModel) -> StageHost:
        return with_threads(model, threads[number // len(PARTS) % len(threads)])

    async with head_of(models, seed=count, host_of=host_of) as head:
        # Each text is checked, whatever the standing.
        head.checks._chance = lambda: 0.0
        for number, prompt in enumerate(prompts(count, lines=LONG_LINES)):
            await head.checked(prompt, tokens=TOKENS, sampling=sampling_of(number))
        aside = head.disputes.set_aside(head.now_s)
        pairs = head.disputes.apart(head.now_s)
        return (
            f"{numerics}: {count} honest texts, {head.checks.checked} checks of {seen.positions} positions, "
            f"{seen.differing} of {seen.choices} choices differ, widest gap {max(seen.gaps):.1e}, of medians "
            f"{max(seen.medians):.1e}, {len(aside)} set aside, {len(pairs)} pairs apart"
        )


async def faulty(models: Sequence[StageModel], numerics: str, name: str, place: int, count: int, seen: Seen) -> str:
    """How often a check finds a stage with a fault."""
    host = FAULTS[name](zoo.location("target"), PARTS[place], TYPES[numerics], SLOTS)
    liar = f"stage {place}"
    found = named = suffer = 0
    for number, prompt in enumerate(prompts(count)):
        async with head_of(
            models, seed=number, host_of=lambda each, model: host if each == place else StageHost(model)
        ) as head:
            head.checks._chance = lambda: 0.0
            await head.checked(prompt, tokens=TOKENS, sampling=sampling_of(number))
            aside = head.disputes.set_aside(head.now_s) | frozenset().union(*head.disputes.apart(head.now_s))
            found += liar in aside
            named += liar in head.rejected
            suffer += len(aside - {liar})
    gap = f"{np.median(seen.medians):.1e}" if seen.medians else "nothing"
    return (
        f"{numerics} {name}, layers {PARTS[place]}: {count} texts, found in {found}, named in {named}, "
        f"{seen.differing} of {seen.choices} tokens changed, median gap {gap}, "
        f"{suffer} others suffer"
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
        others = (head.disputes.set_aside(head.now_s) | frozenset().union(*head.disputes.apart(head.now_s))) - {
            name
        }
        return name in head.rejected, texts, wrong, len(others)


class CountedProbes:
    """The probes of a chain, counted on their way."""

    def __init__(self, chain: RemoteChain) -> None:
        self._probe = chain.probe
        self.tokens = self.sent_bytes = 0
        chain.probe = self.probe  # type: ignore[method-assign]  # the same, counted

    async def probe(self, probe: Probe) -> list[tuple[PartTrace, ...] | None]:
        told = await self._probe(probe)
        self.tokens += sum(part.tokens for part in probe.parts)
        self.sent_bytes += sum(len(encode(probe)) + len(encode(Probed(each))) for each in told if each)
        return told


async def cost(models: Sequence[StageModel], numerics: str) -> str:
    """The time of texts with probes over that without, by turns, and what probes send; none is checked."""
    asked = prompts(4)
    times_s = {True: 0.0, False: 0.0}
    sent_bytes = probed_tokens = 0
    for number, prompt in enumerate(asked * 6):
        is_witnessed = bool(number // len(asked) % 2)
        async with head_of(models) as head:
            head.checks._chance = lambda: 1.0
            await head.open()
            assert head.engine is not None and head.chain is not None
            if not is_witnessed:
                head.engine.witness = None
            counted = CountedProbes(head.chain)
            await head.write(prompt, tokens=4)
            began_s = time.process_time()
            await head.write(prompt, tokens=TOKENS)
            await head.checks.idle()
            times_s[is_witnessed] += time.process_time() - began_s
            probed_tokens += counted.tokens
            sent_bytes += counted.sent_bytes
    passes = 3 * len(asked) * TOKENS
    return (
        f"{numerics}: with probes a text takes {times_s[True] / times_s[False]:.3f} times the processor time, "
        f"{1e3 * times_s[False] / passes:.2f} ms a pass without; {len(PARTS)} stages and their head send "
        f"{sent_bytes / probed_tokens:.0f} bytes a token in probes"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--honest", type=int, default=40)
    parser.add_argument("--threads", default="1")
    parser.add_argument("--liars", type=int, default=1)
    parser.add_argument("--faults", type=int, default=0)
    parser.add_argument("--only", default=",".join(FAULTS))
    parser.add_argument("--places", default="0,1,2")
    parser.add_argument("--types", default=",".join(TYPES))
    parser.add_argument("--cost", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(1)

    def show(line: str) -> None:
        sys.stdout.write(line + "\n")
        sys.stdout.flush()

    for numerics in options.types.split(","):
        models = load(zoo.location("target"), PARTS, holders=HOLDERS, dtype=TYPES[numerics], slots=SLOTS)
        if options.cost:
            show(asyncio.run(cost(models, numerics)))
            continue
        names = [name for name in options.only.split(",") if name != numerics]
        if options.honest:
            threads = [*map(int, options.threads.split(","))]
            with watched() as seen:
                show(asyncio.run(honest(models, options.honest, numerics, threads, seen)))
        for name in names if options.faults else ():
            for place in map(int, options.places.split(",")):
                with watched() as seen:
                    show(asyncio.run(faulty(models, numerics, name, place, options.faults, seen)))
        right = asyncio.run(right_texts(models)) if options.liars else []
        for lie in (each for each in Lie if each is not Lie.NO_WORD and options.liars):
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
            show(
                f"{numerics} {lie.name}: {len(results)} liars, {sum(each[0] for each in results)} found, after "
                f"{max(each[1] for each in results)} texts at most, "
                f"{sum(each[2] for each in results)} wrong texts, "
                f"{sum(each[3] for each in results)} others suffer"
            )


if __name__ == "__main__":
    main()
