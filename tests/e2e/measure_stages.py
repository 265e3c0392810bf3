"""Tokens per second of a model in parts over emulated links, by the clock: `python -m tests.e2e.measure_stages`.

A head and stages of the embedded target as processes, each stage behind a link of the given round-trip time, with
drafters of two domains beside the head. Prompts ask in turn, without drafters and with them, so that a busy machine
slows both; every text is compared with what transformers alone generates.
"""

import argparse
import asyncio
import json
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any, Final

from cosine_p2p import AsyncClient
from tests.e2e.nodes import Node
from tests.e2e.reference import encoded, greedy
from tests.e2e.stages import NETWORK, PLACE, stage_swarm

COMMAND: Final = (sys.executable, "-m", "tests.e2e.delayed_stage")
PARTS: Final = {1: ("0:8",), 2: ("0:4", "4:8"), 4: ("0:2", "2:4", "4:6", "6:8")}
PROMPTS: Final = (
    "The old lighthouse keeper opened the door and",
    "def add(a, b):",
    "Question: What is 12 plus 30? Answer:",
)
STRATEGIES: Final = ("plain", "cosine")
NEW_TOKENS: Final = 64


async def measure(boot: str, *, repeats: int) -> dict[str, list[float]]:
    """Tokens per second of each request by strategy; a wrong text ends it."""
    found: dict[str, list[float]] = {strategy: [] for strategy in STRATEGIES}
    expected = {prompt: greedy(encoded(prompt), NEW_TOKENS) for prompt in PROMPTS}
    async with AsyncClient([boot], network=NETWORK, dtype="float32") as client:
        for repeat in range(repeats + 1):
            for prompt in PROMPTS:
                for strategy in STRATEGIES:
                    begun_s = time.monotonic()
                    run = await client.start(prompt, strategy=strategy, max_new_tokens=NEW_TOKENS)
                    async for _ in run.chunks():
                        pass
                    seconds = time.monotonic() - begun_s
                    tokens = run.result().token_ids
                    assert tokens == expected[prompt], f"{strategy}: {prompt!r} gave another text"
                    # The first time everything is new: streams, prefixes, trials.
                    if repeat:
                        found[strategy].append(len(tokens) / seconds)
    return found


def measure_place(*, rtt_ms: float, parts: int, repeats: int) -> dict[str, Any]:
    """Median tokens per second over so many parts, each behind a link of that round-trip time."""
    with tempfile.TemporaryDirectory() as folder, stage_swarm(Path(folder)) as swarm:
        for number, layers in enumerate(PARTS[parts]):
            options = ("--model", "zoo:target", "--layers", layers, "--memory", "400MB", "--dtype", "float32")
            swarm.nodes[f"stage-{number}"] = Node.start(
                f"stage-{number}",
                ("join", "--role", "stage", *options, *PLACE, swarm.boot.maddr),
                Path(folder),
                command=COMMAND,
                COSINE_TEST_RTT_MS=str(rtt_ms),
            )
        swarm.begin_head()
        for domain in ("literature", "general"):
            swarm.begin(domain, "--role", "drafter", "--model", f"zoo:draft-{domain}", "--dtype", "float32")
        for node in swarm.nodes.values():
            node.wait_ready()
        found = asyncio.run(measure(swarm.boot.maddr, repeats=repeats))
    rates = {strategy: round(median(values), 2) for strategy, values in found.items()}
    return {"rtt_ms": rtt_ms, "parts": parts, **rates, "speedup": round(rates["cosine"] / rates["plain"], 2)}


def main() -> None:
    """Print one JSON object a line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rtt-ms", type=float, action="append", help="20, 50 and 100 unless given")
    parser.add_argument("--parts", type=int, action="append", choices=PARTS, help="1 and 2 unless given")
    parser.add_argument("--repeats", type=int, default=3)
    asked = parser.parse_args()
    for parts in asked.parts or [1, 2]:
        for rtt_ms in asked.rtt_ms or [20.0, 50.0, 100.0]:
            row = measure_place(rtt_ms=rtt_ms, parts=parts, repeats=asked.repeats)
            sys.stdout.write(json.dumps(row) + "\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main()
