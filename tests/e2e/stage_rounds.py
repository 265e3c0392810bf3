"""Rounds in which a stage is killed in the middle of a text: `python -m tests.e2e.stage_rounds --rounds 20`.

Each half of the embedded target's layers is held by two stages. A head serves a text over one of each; the one of a
half is killed (`kill -9`) and started again before the next round. The text must be what transformers alone
generates; the longest silence after the fault is the time to go on.
"""

import argparse
import asyncio
import json
import os
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Final

from cosine_p2p import AsyncClient
from cosine_protocol.errors import CosineError
from tests.e2e.nodes import Node
from tests.e2e.reference import encoded, greedy
from tests.e2e.stages import NETWORK, StageSwarm, stage_swarm

PROMPT: Final = "The old lighthouse keeper opened the door and"
NEW_TOKENS: Final = 256
KILL_AFTER_TOKENS: Final = 24
HALVES: Final = {"first": "0:4", "second": "4:8"}


@dataclass(frozen=True, slots=True)
class StageRound:
    """One round: whether the text was the target's, and the longest time without a token after the stage's end."""

    is_right: bool
    silence_s: float
    error: str = ""


async def play(swarm: StageSwarm, client: AsyncClient, half: str) -> StageRound:
    """One round; afterwards the stage that was killed is started again."""
    victim: str | None = None
    tokens, last_s, silence_s, error = 0, 0.0, 0.0, ""
    run = await client.start(PROMPT, strategy="plain", max_new_tokens=NEW_TOKENS)
    try:
        async for chunk in run.chunks():
            tokens += len(chunk.token_ids)
            now_s = time.perf_counter()
            if victim is not None:
                silence_s, last_s = max(silence_s, now_s - last_s), now_s
            elif tokens >= KILL_AFTER_TOKENS:
                victim = swarm.serving(HALVES[half])
                swarm.nodes[victim].kill()
                last_s = time.perf_counter()
    except CosineError as failure:
        error = str(failure)
    assert victim is not None, "the text ended before a stage was killed"
    is_right = not error and run.result().token_ids == greedy(encoded(PROMPT), NEW_TOKENS)
    await asyncio.to_thread(_started_again, swarm, victim, half)
    return StageRound(is_right, silence_s, error)


def _started_again(swarm: StageSwarm, name: str, half: str) -> Node:
    return swarm.begin_stage(name, HALVES[half]).wait_ready()


async def rounds_of(
    swarm: StageSwarm, halves: Sequence[str], *, rounds: int, say: Callable[[str], None]
) -> list[dict[str, object]]:
    """All rounds of each half, a row for each."""
    rows: list[dict[str, object]] = []
    greedy(encoded(PROMPT), NEW_TOKENS)
    async with AsyncClient([swarm.boot.maddr], network=NETWORK, dtype="float32") as client:
        for half in halves:
            played = [await play(swarm, client, half) for _ in range(rounds)]
            silences_s = sorted(one.silence_s for one in played)
            row: dict[str, object] = {
                "killed": f"the stage of layers {HALVES[half]}",
                "rounds": rounds,
                "right": sum(one.is_right for one in played),
                "silence_p50_s": round(median(silences_s), 2),
                "silence_most_s": round(silences_s[-1], 2),
                "errors": [one.error for one in played if one.error],
            }
            say(json.dumps(row))
            rows.append(row)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--half", action="append", choices=list(HALVES))
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        for kind in ("DATA", "CACHE", "CONFIG", "STATE"):
            os.environ[f"XDG_{kind}_HOME"] = str(Path(folder, kind.lower()))
        os.environ["HF_HUB_OFFLINE"] = "1"
        with stage_swarm(Path(folder)) as swarm:
            for half, layers in HALVES.items():
                swarm.begin_stage(half, layers)
                swarm.begin_stage(f"{half}-spare", layers)
            swarm.begin_head()
            for node in swarm.nodes.values():
                node.wait_ready()
            asyncio.run(rounds_of(swarm, asked.half or list(HALVES), rounds=asked.rounds, say=print))


if __name__ == "__main__":
    main()
