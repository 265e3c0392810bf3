"""A model in parts on machines that have nothing of it: each fetches its share from the swarm, as processes."""

import asyncio
import json
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import pytest

from cosine_node import zoo
from cosine_p2p import AsyncClient
from cosine_p2p.text.held_weights import HeldWeights
from cosine_p2p.text.target import KNOWN_TARGETS
from tests.e2e.nodes import Node, close_all
from tests.e2e.reference import encoded, greedy

pytestmark = [pytest.mark.network, pytest.mark.thorough, pytest.mark.timeout(300)]

NETWORK: Final = "fetched"
DIGEST: Final = KNOWN_TARGETS["zoo:target"].hex()
PROMPT: Final = "The old lighthouse keeper opened the door and"
NEW_TOKENS: Final = 48
MOST_DISK: Final = 1.15
"""Of a stage's share of the weights: what it may take of its disk, the tokenizer and all."""


@dataclass(slots=True)
class Machines:
    """Processes, each with folders of its own, as on a machine of its own."""

    folder: Path
    nodes: dict[str, Node] = field(default_factory=dict)
    maddr: str = ""

    def start(self, name: str, *arguments: str) -> Node:
        kinds = ("XDG_CACHE_HOME", "XDG_DATA_HOME", "XDG_STATE_HOME")
        home = {kind: str(self.folder / name / kind) for kind in kinds}
        place = ("--network", NETWORK, *(("--initial-peers", self.maddr) if self.maddr else ()))
        node = Node.start(name, (*arguments, *place), self.folder, HF_HUB_OFFLINE="1", **home)
        self.nodes[name] = node
        return node

    def start_stage(self, name: str, layers: str) -> Node:
        model = ("--model", DIGEST, "--layers", layers)
        return self.start(name, "join", "--role", "stage", *model, "--dtype", "float32", *SMALL)

    def weights_of(self, name: str) -> Path:
        (folder,) = (self.folder / name / "XDG_CACHE_HOME" / "cosine-p2p" / "weights").iterdir()
        return folder


SMALL: Final = ("--memory", "400MB", "--threads", "1")


@pytest.fixture(scope="module")
def machines(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machines]:
    """One machine holds all; two stages and a head begin with nothing. Once they are ready the first is gone."""
    swarm = Machines(tmp_path_factory.mktemp("machines"))
    try:
        swarm.maddr = swarm.start("boot", "bootstrap").wait_ready().maddr
        holder = swarm.start(
            "holder", "join", "--role", "verifier", "--model", "zoo:target", "--dtype", "float32", "--threads", "1"
        )
        holder.wait_ready()
        swarm.start_stage("first", "0:3")
        swarm.start_stage("second", "3:8")
        for name in ("first", "second"):
            swarm.nodes[name].wait_ready()
        swarm.start("head", "join", "--role", "verifier", "--over-stages", "--model", DIGEST, "--threads", "1")
        swarm.nodes["head"].wait_ready()
        holder.kill()
        yield swarm
    finally:
        close_all(list(swarm.nodes.values()))


def test_the_text_is_that_of_the_whole_model(machines: Machines) -> None:
    async def play() -> None:
        head = machines.nodes["head"].peer_id
        async with AsyncClient(
            [machines.maddr], memory=False, network=NETWORK, target=DIGEST, dtype="float32"
        ) as client:
            run = await client.start(PROMPT, strategy="plain", max_new_tokens=NEW_TOKENS)
            async for _ in run.chunks():
                pass
        done = run.result()
        assert done.token_ids == greedy(encoded(PROMPT), NEW_TOKENS)
        assert done.verifiers[-1].peer_id == head

    asyncio.run(play())


@pytest.mark.parametrize(("name", "layers"), [("first", range(3)), ("second", range(3, 8))])
def test_a_stage_keeps_its_share_on_the_disk_and_little_more(machines: Machines, name: str, layers: range) -> None:
    folder = machines.weights_of(name)
    held = HeldWeights.read(folder)
    assert layers_of(held) == set(layers)
    share = sum(placed.tensor.size_bytes for placed in held.tensors.values())
    cache = machines.folder / name / "XDG_CACHE_HOME"
    stored = sum(file.stat().st_size for file in cache.rglob("*") if file.is_file())
    assert stored <= MOST_DISK * share, (stored, share)
    assert held.content_digest == HeldWeights.read(zoo.folder("target")).content_digest


def layers_of(held: HeldWeights) -> set[int]:
    return {int(name.split(".")[2]) for name in held.tensors if ".layers." in name}


def test_a_head_keeps_no_tensor(machines: Machines) -> None:
    assert not HeldWeights.read(machines.weights_of("head")).tensors


def test_other_stages_are_sources_too_and_where_they_are_gone_it_waits(machines: Machines) -> None:
    late = machines.start_stage("late", "2:4").wait_ready()
    assert layers_of(HeldWeights.read(machines.weights_of("late"))) == {2, 3}
    assert late.ready["layers"] == "2:4"
    machines.nodes["first"].kill()
    stranded = machines.start_stage("stranded", "0:3")
    said = waiting_for(stranded)
    assert re.fullmatch(
        r"Nobody offers \d+ of the \d+ tensors of layers 0:3 of 8 of [0-9a-f]{64} now, such as .*", said
    )
    assert stranded.stop() == 0
    # What it has found meanwhile stays for the next time: layer 2 from the late one.
    assert layers_of(HeldWeights.read(machines.weights_of("stranded"))) == {2}


def waiting_for(node: Node) -> str:
    """What a node says that it waits for, once it has fetched something."""
    while node.process.poll() is None:
        for line in node.log.read_text().splitlines():
            event = json.loads(line) if line.startswith("{") else {}
            if event.get("event") == "waiting_for_weights" and event.get("bytes"):
                return str(event["said"])
        time.sleep(0.2)
    raise AssertionError(node.log.read_text())
