"""A GGUF file in parts as processes, beside the whole file in the same engine: texts, memory and disk of each.

`python -m tests.e2e.gguf_stages FILE 0:15,15:30 0:10,10:20,20:30` measures a file, cut in these ways.
"""

import asyncio
import json
import resource
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from cosine_node.gguf.unfolding import unfold
from cosine_p2p import AsyncClient
from cosine_p2p.text.held_weights import HeldWeights
from cosine_p2p.text.target import read_target_facts
from tests.e2e.nodes import COMMAND, Node, close_all

NETWORK: Final = "gguf-parts"
ENGINE: Final = ("--dtype", "float32", "--threads", "1")
PROMPTS: Final = ("The old lighthouse keeper opened the door and", "def reverse(text):\n")
TEMPERATURES: Final = (0.0, 0.8)
NEW_TOKENS: Final = 16
READY_TIMEOUT_S: Final = 900.0
"""A real model's parts are tried and measured on a machine that may have other work."""

Texts = list[tuple[int, ...]]


@dataclass(frozen=True, slots=True)
class NodeSize:
    """What a process takes, in bytes: of its weights by its own account, of memory, of its disk."""

    layers: str
    weights_bytes: int
    resident_bytes: int
    stored_bytes: int
    share_bytes: int
    """Of the tensors that it holds, as the file has them."""


@dataclass(slots=True)
class GgufSwarm:
    """A machine that holds the whole file, and others that begin with nothing."""

    file: Path
    folder: Path
    digest: str = ""
    maddr: str = ""
    limit_bytes: int | None = None
    """The system refuses a process more memory than this, but for what it only reads of files."""
    command: Sequence[str] | None = None
    """What starts a node; a prepared process would be measured with all that others import."""
    nodes: dict[str, Node] = field(default_factory=dict)

    def start(self, name: str, *arguments: str) -> Node:
        kinds = ("XDG_CACHE_HOME", "XDG_DATA_HOME", "XDG_STATE_HOME")
        home = {kind: str(self.folder / name / kind) for kind in kinds}
        place = ("--network", NETWORK, *(("--initial-peers", self.maddr) if self.maddr else ()))
        node = self.nodes[name] = Node.start(
            name, (*arguments, *place), self.folder, command=self.command, HF_HUB_OFFLINE="1", **home
        )
        if self.limit_bytes is not None:
            resource.prlimit(node.process.pid, resource.RLIMIT_DATA, (self.limit_bytes, self.limit_bytes))
        return node

    def start_network(self) -> None:
        """The bootstrap node of a network for the file, which is read for its digest."""
        facts = read_target_facts(unfold(self.file, cache_folder=self.folder / "unfolded"), name="it")
        assert facts is not None
        self.digest = facts.digest().hex()
        self.maddr = self.start("boot", "bootstrap").wait_ready(READY_TIMEOUT_S).maddr

    def start_whole(self) -> None:
        """The bootstrap node, and a verifier of the whole file."""
        self.start_network()
        stored = ("--engine", "torch", "--quantize", "stored")
        self.start("whole", "join", "--role", "verifier", "--model", str(self.file), *stored, *ENGINE).wait_ready(
            READY_TIMEOUT_S
        )

    def start_stages(self, cut: Sequence[str]) -> list[str]:
        """Stages of these layers, which fetch them: their names."""
        names = [f"stage-{len(cut)}-{layers.replace(':', '-')}" for layers in cut]
        for name, layers in zip(names, cut, strict=True):
            model = ("--model", self.digest, "--layers", layers, "--memory", "2GiB")
            self.start(name, "join", "--role", "stage", *model, *ENGINE)
        for name in names:
            self.nodes[name].wait_ready(READY_TIMEOUT_S)
        return names

    def start_head(self) -> str:
        """A head over the stages that there are: its name."""
        name = f"head-{len(self.nodes)}"
        model = ("--over-stages", "--model", self.digest, "--threads", "1")
        self.start(name, "join", "--role", "verifier", *model).wait_ready(READY_TIMEOUT_S)
        return name

    def close(self, *names: str) -> None:
        close_all([self.nodes[name] for name in names])

    def texts(self, name: str) -> Texts:
        """What a node writes after each prompt, at each temperature; there must be no other verifier."""
        return asyncio.run(self._texts(self.nodes[name].peer_id))

    async def _texts(self, peer_id: str) -> Texts:
        found = []
        async with AsyncClient([self.maddr], network=NETWORK, target=self.digest, audit=0.0) as client:
            for prompt in PROMPTS:
                for temperature in TEMPERATURES:
                    run = await client.start(
                        prompt, strategy="plain", max_new_tokens=NEW_TOKENS, temperature=temperature, seed=11
                    )
                    async for _ in run.chunks():
                        pass
                    done = run.result()
                    assert done.verifiers[-1].peer_id == peer_id
                    found.append(tuple(done.token_ids))
        return found

    def size(self, name: str) -> NodeSize:
        """What a stage takes."""
        node = self.nodes[name]
        (kept,) = (self.folder / name / "XDG_CACHE_HOME" / "cosine-p2p" / "weights").iterdir()
        cache = self.folder / name / "XDG_CACHE_HOME"
        return NodeSize(
            layers=str(node.ready["layers"]),
            weights_bytes=int(node.ready["weights_bytes"]),
            resident_bytes=resident_bytes(node),
            stored_bytes=sum(file.stat().st_size for file in cache.rglob("*") if file.is_file()),
            share_bytes=sum(placed.tensor.size_bytes for placed in HeldWeights.read(kept).tensors.values()),
        )


def resident_bytes(node: Node) -> int:
    """The memory of a process now, Python and its libraries included."""
    status = Path(f"/proc/{node.process.pid}/status").read_text()
    line = next(line for line in status.splitlines() if line.startswith("VmRSS"))
    return 1024 * int(line.split()[1])


def main(file: str, *cuts: str) -> None:
    """Print an object a line: what the whole file takes, then of each cut whether texts are its, and its stages."""
    with tempfile.TemporaryDirectory() as name:
        swarm = GgufSwarm(Path(file), Path(name), command=COMMAND)
        try:
            swarm.start_whole()
            expected = swarm.texts("whole")
            whole_bytes = resident_bytes(swarm.nodes["whole"])
            _tell({"file_bytes": Path(file).stat().st_size, "whole_resident_bytes": whole_bytes})
            before = ["whole"]
            for cut in cuts:
                stages = swarm.start_stages(cut.split(","))
                swarm.close(*before)
                head = swarm.start_head()
                same = sum(one == other for one, other in zip(swarm.texts(head), expected, strict=True))
                sizes = [swarm.size(stage) for stage in stages]
                found = {
                    "cut": cut,
                    "same_texts": f"{same} of {len(expected)}",
                    "head_resident_bytes": resident_bytes(swarm.nodes[head]),
                    "stages": [{name: getattr(size, name) for name in NodeSize.__slots__} for size in sizes],
                }
                _tell(found)
                swarm.close(head)
                before = stages
        finally:
            close_all(list(swarm.nodes.values()))


def _tell(found: Mapping[str, object]) -> None:
    sys.stdout.write(json.dumps(found) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main(*sys.argv[1:])
