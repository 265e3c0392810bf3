"""Stages of limited memory with a model that none of them could hold: how long each takes, and its most memory.

`python -m tests.e2e.large_stages FILE 0:14,14:28,28:42,42:56` measures a file of `tests.e2e.large_model`. The first
stage reads the file and the others fetch their share; the second reads what it has fetched from its disk once more.
"""

import asyncio
import json
import os
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from cosine_p2p import AsyncClient
from tests.e2e.gguf_stages import ENGINE, NETWORK, READY_TIMEOUT_S, GgufSwarm
from tests.e2e.nodes import COMMAND, Node, close_all

LIMIT_BYTES: Final = 4_000_000_000
MEMORY: Final = "3.5GB"
"""Of a stage's weights and pool; the rest is for Python, its libraries and what comes and goes in a pass."""
PROMPT: Final = "The old lighthouse keeper opened the door and"
NEW_TOKENS: Final = 4


@dataclass(slots=True)
class LargeSwarm(GgufSwarm):
    """Nodes of a large file, each of which is measured from its start on."""

    ready_s: dict[str, float] = field(default_factory=dict)

    def start_ready(self, name: str, *arguments: str) -> Node:
        """Start a node and wait until it is ready."""
        began_s = time.monotonic()
        node = self.start(name, *arguments).wait_ready(READY_TIMEOUT_S)
        self.ready_s[name] = time.monotonic() - began_s
        return node

    def start_stage(self, name: str, layers: str) -> None:
        """The first stage, of the file itself, or another one of what that has announced."""
        model = ("--model", self.digest or str(self.file), "--layers", layers, "--memory", MEMORY)
        node = self.start_ready(name, "join", "--role", "stage", *model, *ENGINE)
        self.digest = self.digest or next(str(told["target"]) for told in events(node) if "target" in told)

    async def text(self) -> dict[str, object]:
        """A greedy text of the head, and the seconds until each piece of it."""
        async with AsyncClient([self.maddr], network=NETWORK, target=self.digest, audit=0.0) as client:
            began_s = time.monotonic()
            run = await client.start(PROMPT, strategy="plain", max_new_tokens=NEW_TOKENS, temperature=0.0)
            came_s = [round(time.monotonic() - began_s, 1) async for _ in run.chunks()]
            return {"token_ids": run.result().token_ids, "came_s": came_s}

    def measured(self, name: str) -> dict[str, object]:
        """What a node took until now."""
        node = self.nodes[name]
        took: Counter[str] = Counter()
        for told in events(node):
            if told["event"] == "took":
                took[told["stage"]] += told["seconds"]
        said = {key: node.ready[key] for key in ("layers", "weights_bytes", "pool_tokens") if key in node.ready}
        return {**said, "ready_s": round(self.ready_s[name], 1), "took_s": dict(took), **peak_bytes(node)}


def events(node: Node) -> list[dict[str, Any]]:
    """What a node has told on the way to its being ready."""
    lines = [json.loads(line) for line in node.log.read_text().splitlines() if line.startswith("{")]
    return [line for line in lines if "event" in line]


def peak_bytes(node: Node) -> dict[str, int]:
    """The most memory that a process and its children ever had, pages of files included, and what it has now."""
    pid = node.process.pid
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return {
        "peak_bytes": _status_bytes(str(pid), "VmHWM"),
        "children_peak_bytes": sum(_status_bytes(child, "VmHWM") for child in children),
        "now_bytes": _status_bytes(str(pid), "RssAnon"),
        "now_of_files_bytes": _status_bytes(str(pid), "RssFile"),
    }


def _status_bytes(pid: str, key: str) -> int:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return 1024 * int(next(line.split()[1] for line in lines if line.startswith(key)))


def forget(file: Path) -> None:
    """Let the next reader of a file read it from the disk."""
    with file.open("rb") as opened:
        os.fsync(opened.fileno())
        os.posix_fadvise(opened.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def main(file: str, cut: str) -> None:
    """Print one object: the text, and what each node took."""
    with tempfile.TemporaryDirectory() as name:
        swarm = LargeSwarm(Path(file), Path(name), limit_bytes=LIMIT_BYTES, command=COMMAND)
        try:
            swarm.maddr = swarm.start_ready("boot", "bootstrap").maddr
            stages = [(f"stage-{layers.replace(':', '-')}", layers) for layers in cut.split(",")]
            forget(swarm.file)
            for stage, layers in stages:
                swarm.start_stage(stage, layers)
                sys.stderr.write(f"{stage}: {json.dumps(swarm.measured(stage))}\n")
            over = ("--over-stages", "--model", swarm.digest, "--threads", "1")
            swarm.start_ready("head", "join", "--role", "verifier", *over)
            found: dict[str, object] = {"file_bytes": swarm.file.stat().st_size, **asyncio.run(swarm.text())}
            found |= {node: swarm.measured(node) for node in swarm.nodes if node != "boot"}
            again, layers = stages[1]
            swarm.close(again)
            for kept in (swarm.folder / again).rglob("*.gguf"):
                forget(kept)
            swarm.start_stage(again, layers)
            found["from its disk"] = swarm.measured(again)
            sys.stdout.write(json.dumps(found, indent=1) + "\n")
        finally:
            close_all(list(swarm.nodes.values()))


if __name__ == "__main__":
    main(*sys.argv[1:])
