"""Rounds in which a stage is killed in the middle of a text: `python -m tests.e2e.stage_rounds --rounds 20`.

Each half of the embedded target's layers is held by two stages. A head serves a text over one of each; the one of a
half is killed (`kill -9`) and started again before the next round. The text must be what transformers alone
generates; the longest silence after the fault is the time to go on.

With `--prompt-tokens 2000` texts begin with so many, of the embedded target with a longer context, whose texts are
odd but its own; `--cold` lets the head keep no second chain warm.
"""

import argparse
import asyncio
import json
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Final

from cosine_node import zoo
from cosine_p2p import AsyncClient
from cosine_protocol.errors import CosineError
from tests.e2e.nodes import Node
from tests.e2e.reference import encoded, greedy, target_tokenizer
from tests.e2e.stages import NETWORK, StageSwarm, stage_swarm

PROMPT: Final = "The old lighthouse keeper opened the door and"
HALVES: Final = {"first": "0:4", "second": "4:8"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """What is generated in each round, and when a stage is killed."""

    prompt: str = PROMPT
    new_tokens: int = 256
    kill_after_tokens: int = 24
    folder: Path | None = None

    @property
    def expected(self) -> tuple[int, ...]:
        return greedy(encoded(self.prompt), self.new_tokens, self.folder)

    @classmethod
    def long(cls, folder: Path, *, prompt_tokens: int) -> "Scene":
        """A prompt of so many tokens, for a copy of the embedded target in a new folder."""
        copied = Path(shutil.copytree(zoo.location("target"), folder))
        config = json.loads((copied / "config.json").read_text())
        (copied / "config.json").write_text(json.dumps(config | {"max_position_embeddings": 4 * prompt_tokens}))
        story = " ".join(prompt.text for domain in zoo.DOMAINS for prompt in zoo.prompts(domain) if prompt.text)
        text = target_tokenizer().decode(list((encoded(story) * prompt_tokens)[:prompt_tokens]))
        # Long enough for a second chain to catch up, as fast as passes are here.
        return cls(prompt=text, new_tokens=1200, kill_after_tokens=1000, folder=copied)


@dataclass(frozen=True, slots=True)
class StageRound:
    """One round: whether the text was the target's, and the longest time without a token after the stage's end."""

    is_right: bool
    silence_s: float
    error: str = ""


async def play(swarm: StageSwarm, client: AsyncClient, half: str, scene: Scene) -> StageRound:
    """One round; afterwards the stage that was killed is started again."""
    victim: str | None = None
    tokens, last_s, silence_s, error = 0, 0.0, 0.0, ""
    run = await client.start(
        scene.prompt, strategy="plain", max_new_tokens=scene.new_tokens, ignore_eos=scene.folder is not None
    )
    try:
        async for chunk in run.chunks():
            tokens += len(chunk.token_ids)
            now_s = time.perf_counter()
            if victim is not None:
                silence_s, last_s = max(silence_s, now_s - last_s), now_s
            elif tokens >= scene.kill_after_tokens:
                victim = swarm.serving(HALVES[half])
                swarm.nodes[victim].kill()
                last_s = time.perf_counter()
    except CosineError as failure:
        error = str(failure)
    assert victim is not None, "the text ended before a stage was killed"
    is_right = not error and run.result().token_ids == scene.expected
    await asyncio.to_thread(_started_again, swarm, victim, half)
    return StageRound(is_right, silence_s, error)


def _started_again(swarm: StageSwarm, name: str, half: str) -> Node:
    return swarm.begin_stage(name, HALVES[half]).wait_ready()


async def rounds_of(
    swarm: StageSwarm, halves: Sequence[str], scene: Scene, *, rounds: int, say: Callable[[str], None]
) -> list[dict[str, object]]:
    """All rounds of each half, a row for each."""
    rows: list[dict[str, object]] = []
    _ = scene.expected
    async with AsyncClient([swarm.boot.maddr], network=NETWORK, dtype="float32", target=swarm.model) as client:
        for half in halves:
            played = [await play(swarm, client, half, scene) for _ in range(rounds)]
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
    parser.add_argument("--prompt-tokens", type=int)
    parser.add_argument("--cold", action="store_true")
    parser.add_argument("--half", action="append", choices=list(HALVES))
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        for kind in ("DATA", "CACHE", "CONFIG", "STATE"):
            os.environ[f"XDG_{kind}_HOME"] = str(Path(folder, kind.lower()))
        os.environ["HF_HUB_OFFLINE"] = "1"
        scene = Scene()
        if asked.prompt_tokens:
            scene = Scene.long(Path(folder, "model"), prompt_tokens=asked.prompt_tokens)
        with stage_swarm(Path(folder), model=str(scene.folder or "zoo:target")) as swarm:
            for half, layers in HALVES.items():
                swarm.begin_stage(half, layers)
                swarm.begin_stage(f"{half}-spare", layers)
            swarm.begin_head(*(["--no-warm-spare"] if asked.cold else []))
            for node in swarm.nodes.values():
                node.wait_ready()
            asyncio.run(rounds_of(swarm, asked.half or list(HALVES), scene, rounds=asked.rounds, say=print))


if __name__ == "__main__":
    main()
