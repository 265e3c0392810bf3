"""A model in parts as processes: stages, a head over them, a drafter."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from tests.e2e.nodes import Node, close_all, own_home

NETWORK: Final = "parts"
PLACE: Final = ("--network", NETWORK, "--threads", "1", "--initial-peers")


@dataclass(slots=True)
class StageSwarm:
    """The processes by name; the bootstrap node is never hurt."""

    folder: Path
    boot: Node
    nodes: dict[str, Node] = field(default_factory=dict)
    starts: int = 0

    def begin(self, name: str, *arguments: str) -> Node:
        """Start a node, which is not ready yet."""
        self.starts += 1
        place = (*PLACE, self.boot.maddr)
        self.nodes[name] = Node.start(f"{name}-{self.starts}", ("join", *arguments, *place), self.folder)
        return self.nodes[name]

    def begin_stage(self, name: str, layers: str) -> Node:
        """Start a stage of the target, as slow in float32 as everywhere."""
        options = ("--model", "zoo:target", "--layers", layers, "--memory", "400MB", "--dtype", "float32")
        return self.begin(name, "--role", "stage", *options)

    def begin_head(self, *more: str) -> Node:
        return self.begin("head", "--role", "verifier", "--over-stages", "--model", "zoo:target", *more)

    def serving(self, layers: str) -> str:
        """The name of the stage that holds these layers in the head's latest chain, by its log."""
        chains = [line for line in self.nodes["head"].log.read_text().splitlines() if "a chain over" in line]
        found = re.search(rf"Layers {layers} at (\w+)", chains[-1])
        assert found is not None, chains
        return next(name for name, node in self.nodes.items() if node.ready.get("peer_id") == found[1])


@contextmanager
def stage_swarm(folder: Path) -> Iterator[StageSwarm]:
    with own_home(folder / "home"):
        boot = Node.start("boot", ("bootstrap", "--network", NETWORK), folder)
        swarm = StageSwarm(folder, boot)
        try:
            boot.wait_ready()
            yield swarm
        finally:
            close_all([boot, *swarm.nodes.values()])
