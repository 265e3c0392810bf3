"""Stages whose memory is limited, with a model that none of them could hold: their times, and their most memory.

`python -m tests.e2e.large_stages FILE 0:9,9:19,19:29,29:38,38:47,47:56 4GB` measures a file of
`tests.e2e.large_model`. The first stage reads the file and the others fetch their share of it; at the end the
second one reads again what it has fetched. Where they hold all layers there is a head, and a text; `0:1,11:22`
measures the stages alone.
"""

import asyncio
import json
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from cosine_node.engine.pool_size import parse_memory
from cosine_p2p import AsyncClient
from tests.e2e.gguf_stages import ENGINE, NETWORK, GgufSwarm
from tests.e2e.nodes import COMMAND, Node, close_all
from tests.node.weights.measure_fetch import forget

BESIDE_BYTES: Final = 1_400_000_000
"""Of the limit for what is no weight and no pool: 1.2 GB was too little for a last stage. The limit counts memory
that nothing was written to yet, 0.2 GB of stacks and buffers of libraries."""
READY_TIMEOUT_S: Final = 3600.0
PROMPT: Final = "The old lighthouse keeper opened the door and"
NEW_TOKENS: Final = 3


def start_stage(swarm: GgufSwarm, layers: str, model: str) -> str:
    """Start a stage: its name."""
    assert swarm.limit_bytes is not None
    name = f"stage-{layers.replace(':', '-')}"
    memory = f"{swarm.limit_bytes - BESIDE_BYTES}B"
    swarm.start(name, "join", "--role", "stage", "--model", model, "--layers", layers, "--memory", memory, *ENGINE)
    return name


async def text_of(swarm: GgufSwarm) -> dict[str, object]:
    """A greedy text of the head, and the seconds until each piece of it."""
    async with AsyncClient([swarm.maddr], network=NETWORK, target=swarm.digest, audit=0.0) as client:
        began_s = time.monotonic()
        run = await client.start(PROMPT, strategy="plain", max_new_tokens=NEW_TOKENS, temperature=0.0)
        came_s = [round(time.monotonic() - began_s, 1) async for _ in run.chunks()]
        return {"token_ids": run.result().token_ids, "came_s": came_s}


def measured(swarm: GgufSwarm, name: str) -> dict[str, object]:
    """What a node took until now: seconds of each stage of its start, and bytes."""
    node = swarm.nodes[name]
    took: Counter[str] = Counter()
    for told in events(node):
        if told["event"] == "took":
            took[told["stage"]] += told["seconds"]
    keys = ("layers", "weights_bytes", "pool_tokens")
    said: dict[str, object] = {key: node.ready[key] for key in keys if key in node.ready}
    return {**said, "took_s": dict(took), **memory_of(node)}


def events(node: Node) -> list[dict[str, Any]]:
    """What a node has told beside its being ready."""
    lines = [json.loads(line) for line in node.log.read_text().splitlines() if line.startswith("{")]
    return [line for line in lines if "event" in line]


def memory_of(node: Node) -> dict[str, int]:
    """The most memory that a process and its children ever had, pages of files included, and what it has now.

    What it is `allowed` counts whether it was written to or not: that is what is limited.
    """
    pid = node.process.pid
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return {
        "peak_bytes": _status_bytes(str(pid), "VmHWM"),
        "children_peak_bytes": sum(_status_bytes(child, "VmHWM") for child in children),
        "now_bytes": _status_bytes(str(pid), "RssAnon"),
        "now_of_files_bytes": _status_bytes(str(pid), "RssFile"),
        "allowed_bytes": _status_bytes(str(pid), "VmData"),
    }


def _status_bytes(pid: str, key: str) -> int:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return 1024 * int(next(line.split()[1] for line in lines if line.startswith(key)))


def measure(swarm: GgufSwarm, cut: Sequence[str]) -> None:
    """Print an object for each thing that was measured."""

    def tell(**found: object) -> None:
        sys.stdout.write(json.dumps(found) + "\n")
        sys.stdout.flush()

    began_s = time.monotonic()
    swarm.start_network()
    tell(file_bytes=swarm.file.stat().st_size, hashed_s=round(time.monotonic() - began_s, 1))
    stages = [start_stage(swarm, cut[0], str(swarm.file))]
    swarm.nodes[stages[0]].wait_ready(READY_TIMEOUT_S)
    stages += [start_stage(swarm, layers, swarm.digest) for layers in cut[1:]]
    for stage in stages[1:]:
        swarm.nodes[stage].wait_ready(READY_TIMEOUT_S)
    for stage in stages:
        tell(stage=stage, **measured(swarm, stage))
    ends = [tuple(map(int, layers.split(":"))) for layers in cut]
    layers = int(str(swarm.nodes[stages[0]].ready["of_layers"]))
    if [first for first, _ in ends] + [layers] == [0] + [end for _, end in ends]:
        over = ("--over-stages", "--model", swarm.digest, "--threads", "1")
        swarm.start("head", "join", "--role", "verifier", *over).wait_ready(READY_TIMEOUT_S)
        tell(**asyncio.run(text_of(swarm)))
        for name in (*stages, "head"):
            tell(after=name, **measured(swarm, name))
        swarm.close("head")
    swarm.close(stages[1])
    for kept in (swarm.folder / stages[1]).rglob("*.gguf"):
        forget(kept)
    again = start_stage(swarm, cut[1], swarm.digest)
    swarm.nodes[again].wait_said('"event": "testing"', READY_TIMEOUT_S)
    tell(from_its_disk=again, **measured(swarm, again))


def main(file: str, cut: str, limit: str) -> None:
    """Measure a file over stages of these layers, none of which may have more memory than the limit."""
    # Its nodes end with it.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("stopped"))
    limit_bytes, _ = parse_memory(limit, option="the limit")
    with tempfile.TemporaryDirectory() as name:
        swarm = GgufSwarm(Path(file), Path(name), limit_bytes=limit_bytes, command=COMMAND)
        try:
            measure(swarm, cut.split(","))
        finally:
            close_all(list(swarm.nodes.values()))


if __name__ == "__main__":
    main(*sys.argv[1:])
