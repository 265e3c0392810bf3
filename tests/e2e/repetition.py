"""Repeated texts of one verifier: `python -m tests.e2e.repetition` prints how many prompts get several texts.

Every prompt is generated alone, then together with seven others, with and without a cached prefix, and with and
without the verifier's own drafts.
"""

import asyncio
import sys
import tempfile
from collections.abc import Sequence
from itertools import cycle, islice
from pathlib import Path
from typing import Final

from cosine_p2p import AsyncClient
from cosine_p2p.request.chat import Chat
from cosine_p2p.request.options import GenerationOptions
from cosine_protocol.numerics import repeats
from tests.e2e.nodes import starting

PROMPTS: Final = (
    "What is the capital of France?",
    "List five healthy breakfasts.",
    "Write a short poem about rain.",
    "Explain how a bicycle stays upright.",
    "What is seven times eight?",
    "Give three tips for learning to cook.",
    "Who was Marie Curie?",
    "Translate into French: good morning.",
    "Write a Python function that reverses a list.",
    "Why is the sky blue?",
    "Name three planets and what is special about each.",
    "How do I write a polite reminder?",
)
RUNS: Final = 12
AT_ONCE: Final = 8
PLAIN: Final[GenerationOptions] = {"strategy": "plain"}
ALONE: Final[GenerationOptions] = {"max_drafters": 0}
REAL: Final = {
    "default": (),
    "PyTorch, float32": ("--engine", "torch", "--dtype", "float32"),
    "PyTorch, bfloat16": ("--engine", "torch", "--dtype", "bfloat16"),
    "PyTorch, bfloat16, --deterministic": ("--engine", "torch", "--dtype", "bfloat16", "--deterministic"),
    "llama.cpp": ("--engine", "llama"),
}
"""The ways to run the real target that are compared, with the options of each."""


def repetition(
    folder: Path, target: str, options: Sequence[str], *, tokens: int, prompts: Sequence[str] = PROMPTS
) -> tuple[str, list[set[str]]]:
    """Return the numerics of a new verifier, and the greedy texts of `RUNS` chats for each prompt."""
    with starting(folder) as start:
        peer = start("bootstrap", "bootstrap").wait_ready().maddr
        join = ("join", "--role", "verifier", "--model", target, "--initial-peers", peer, *options)
        start("verifier", *join).wait_ready()
        return asyncio.run(_asked(peer, target, prompts, tokens))


async def _asked(peer: str, target: str, prompts: Sequence[str], tokens: int) -> tuple[str, list[set[str]]]:
    async with AsyncClient([peer], target=target, max_new_tokens=tokens, temperature=0.0) as client:
        texts: dict[str, set[str]] = {prompt: set() for prompt in prompts}
        numerics = ""

        async def ask(prompt: str, options: GenerationOptions) -> None:
            nonlocal numerics
            done = await client.generate(Chat([{"role": "user", "content": prompt}]), **options)
            texts[prompt].add(done.text)
            numerics = done.swarm.numerics

        alone = [(prompt, way) for way in (PLAIN, ALONE) for prompt in prompts for _ in range(2)]
        for prompt, way in alone:
            await ask(prompt, way)
        # Each prompt runs with others every time.
        left = RUNS - len(alone) // len(prompts)
        many = list(islice(cycle(prompts), left * len(prompts)))
        for first in range(0, len(many), AT_ONCE):
            ways = cycle((ALONE, PLAIN))
            async with asyncio.TaskGroup() as group:
                for prompt, way in zip(many[first : first + AT_ONCE], ways, strict=False):
                    group.create_task(ask(prompt, way))
        return numerics, list(texts.values())


def main() -> None:
    for name, options in REAL.items():
        with tempfile.TemporaryDirectory() as folder:
            numerics, texts = repetition(Path(folder), "zoo:smol-target", options, tokens=48)
        promise = "the same" if repeats(numerics) else "may differ"
        said = f"{sum(len(each) > 1 for each in texts)} of {len(texts)} prompts got several texts"
        sys.stdout.write(f"{name} ({numerics}, {promise}): {said} in {RUNS} runs\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
