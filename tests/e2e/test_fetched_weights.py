"""A model in parts: processes without any weights fetch their share from the swarm, and a stage may be killed.

The tests that kill stages come last.
"""

import asyncio
import json
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import pytest

from cosine_engine import zoo
from cosine_engine.gguf.unfolding import unfold
from cosine_engine.gguf.writing import write_gguf
from cosine_p2p import AsyncClient
from cosine_p2p.request.model_defaults import KNOWN_TARGETS
from cosine_p2p.text.held_weights import HeldWeights
from cosine_p2p.text.target import read_target_facts
from cosine_protocol.errors import GenerationFailed
from tests.e2e.nodes import Node, close_all
from tests.e2e.reference import encoded, greedy

pytestmark = [pytest.mark.network, pytest.mark.thorough, pytest.mark.timeout(300)]

NETWORK: Final = "fetched"
STAGES: Final = {"first": "0:3", "second": "3:8", "spare": "3:8"}
PROMPTS: Final = ("The old lighthouse keeper opened the door and", "def reverse(text):\n")
NEW_TOKENS: Final = 16
LONG: Final = 256
KILL_AFTER_TOKENS: Final = 24
MOST: Final = 1.15
"""Bound of the memory for weights, and of the disk, as a multiple of a stage's share of the weights."""


@dataclass(slots=True)
class Machines:
    """Processes, each with separate folders as on a separate machine."""

    folder: Path
    kind: "Kind"
    nodes: dict[str, Node] = field(default_factory=dict)
    maddr: str = ""
    digest: str = KNOWN_TARGETS["zoo:target"].hex()
    expected: list[tuple[int, ...]] = field(default_factory=list)
    """The texts of the whole model."""

    def start(self, name: str, *arguments: str) -> Node:
        kinds = ("XDG_CACHE_HOME", "XDG_DATA_HOME", "XDG_STATE_HOME")
        home = {kind: str(self.folder / name / kind) for kind in kinds}
        place = ("--network", NETWORK, *(("--initial-peers", self.maddr) if self.maddr else ()))
        node = Node.start(name, (*arguments, *place), self.folder, HF_HUB_OFFLINE="1", **home)
        self.nodes[name] = node
        return node

    def start_stage(self, name: str, layers: str) -> Node:
        model = ("--model", self.digest, "--layers", layers, "--dtype", "float32")
        return self.start(name, "join", "--role", "stage", *model, "--memory", "400MB", "--threads", "1")

    def serving(self) -> str:
        """The name of the stage that holds the last layers in the head's latest chain, by its log."""
        found = re.findall(r"a chain over.*Layers 3:8 at (\w+)", self.nodes["head"].log.read_text())
        return next(name for name, node in self.nodes.items() if node.ready.get("peer_id") == found[-1])

    def weights_of(self, name: str) -> Path:
        (folder,) = (self.folder / name / "XDG_CACHE_HOME" / "cosine-p2p" / "weights").iterdir()
        return folder


@dataclass(frozen=True, slots=True)
class Kind:
    """The format of a model, and the options of a verifier. Without a `gguf` it is the embedded model."""

    gguf: str | None
    options: tuple[str, ...]
    spare_bytes: int = 0
    """Bound of the size of the tokenizer and metadata."""


KINDS: Final = {
    "safetensors": Kind(None, ("--dtype", "float32")),
    "GGUF": Kind("Q4_1", ("--dtype", "float32", "--engine", "torch", "--quantize", "stored"), 1 << 20),
}


async def texts(machines: Machines, verifier: Node) -> list[tuple[int, ...]]:
    """The texts of a node after each prompt, greedy and sampled."""
    place: dict[str, Any] = {"network": NETWORK, "target": machines.digest, "dtype": None, "audit": 0.0}
    found = []
    async with AsyncClient([machines.maddr], memory=False, **place) as client:
        for prompt in PROMPTS:
            for temperature in (0.0, 0.8):
                options: dict[str, Any] = {"temperature": temperature, "max_new_tokens": NEW_TOKENS, "seed": 11}
                done = await client.generate(prompt, strategy="plain", **options)
                assert done.swarm.verifiers[-1].peer_id == verifier.peer_id
                found.append(done.token_ids)
    return found


@pytest.fixture(scope="module", params=KINDS)
def machines(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machines]:
    """One machine has all weights; two stages and a head start without any. It is killed once they are ready."""
    kind, folder = KINDS[request.param], tmp_path_factory.mktemp("machines")
    swarm, model = Machines(folder, kind), "zoo:target"
    if kind.gguf is not None:
        model = str(folder / "target.gguf")
        write_gguf(zoo.folder("target"), Path(model), weights=kind.gguf)
        facts = read_target_facts(unfold(Path(model), cache_folder=folder / "unfolded"))
        assert facts is not None
        swarm.digest = facts.digest().hex()
    try:
        swarm.maddr = swarm.start("boot", "bootstrap").wait_ready().maddr
        whole = ("join", "--role", "verifier", "--model", model, "--threads", "1", *kind.options)
        holder = swarm.start("holder", *whole).wait_ready()
        swarm.expected = asyncio.run(texts(swarm, holder))
        for name, layers in STAGES.items():
            swarm.start_stage(name, layers)
        for name in STAGES:
            swarm.nodes[name].wait_ready()
        head = ("--role", "verifier", "--over-stages", "--model", swarm.digest, "--threads", "1")
        swarm.start("head", "join", *head).wait_ready()
        holder.kill()
        yield swarm
    finally:
        close_all(list(swarm.nodes.values()))


def test_texts_are_those_of_the_whole_model(machines: Machines) -> None:
    if machines.kind.gguf is None:
        assert machines.expected[0] == greedy(encoded(PROMPTS[0]), NEW_TOKENS)
    assert asyncio.run(texts(machines, machines.nodes["head"])) == machines.expected


def test_a_stage_keeps_its_share_in_memory_and_on_the_disk_and_a_head_keeps_no_tensor(machines: Machines) -> None:
    assert not HeldWeights.read(machines.weights_of("head")).tensors
    for name, layers in STAGES.items():
        held = HeldWeights.read(machines.weights_of(name))
        first, _, end = layers.partition(":")
        share_bytes = sum(placed.tensor.size_bytes for placed in held.tensors.values())
        cache = machines.folder / name / "XDG_CACHE_HOME"
        stored_bytes = sum(file.stat().st_size for file in cache.rglob("*") if file.is_file())
        assert stored_bytes <= MOST * share_bytes + machines.kind.spare_bytes
        if machines.kind.gguf is None:
            assert layers_of(held) == set(range(int(first), int(end)))
            assert held.content_digest == HeldWeights.read(zoo.folder("target")).content_digest
        else:
            assert int(machines.nodes[name].ready["weights_bytes"]) <= MOST * share_bytes


def layers_of(held: HeldWeights) -> set[int]:
    return {int(name.split(".")[2]) for name in held.tensors if ".layers." in name}


@pytest.fixture
def whole_tensors(machines: Machines) -> Machines:
    """The machines with safetensors: one kind of file shows what stages do when others are gone."""
    if machines.kind.gguf is not None:
        pytest.skip("one kind of file shows it")
    return machines


def test_other_stages_are_sources_too(whole_tensors: Machines) -> None:
    late = whole_tensors.start_stage("late", "2:4").wait_ready()
    assert layers_of(HeldWeights.read(whole_tensors.weights_of("late"))) == {2, 3}
    assert late.ready["layers"] == "2:4"


async def killing(machines: Machines) -> tuple[int, ...]:
    """The text of a request during which the last stage of its chain is killed."""
    place: dict[str, Any] = {"network": NETWORK, "target": machines.digest, "dtype": None, "audit": 0.0}
    doomed, tokens = machines.nodes[machines.serving()], 0
    async with AsyncClient([machines.maddr], memory=False, **place) as client:
        run = await client.start(PROMPTS[0], strategy="plain", max_new_tokens=LONG)
        async for chunk in run.chunks():
            tokens += len(chunk.token_ids)
            if tokens >= KILL_AFTER_TOKENS:
                doomed.kill()
    return run.result().token_ids


def test_a_text_goes_on_over_a_spare_and_without_one_the_layers_are_named(whole_tensors: Machines) -> None:
    before = whole_tensors.serving()
    assert asyncio.run(killing(whole_tensors)) == greedy(encoded(PROMPTS[0]), LONG)
    assert {before, whole_tensors.serving()} == {"second", "spare"}
    with pytest.raises(GenerationFailed, match=r"Layers \d:8 of 8 are held by no stage"):
        asyncio.run(killing(whole_tensors))


def test_where_all_sources_are_gone_a_stage_waits_and_keeps_what_it_has(whole_tensors: Machines) -> None:
    whole_tensors.nodes["first"].kill()
    stranded = whole_tensors.start_stage("stranded", "0:3")
    said = waiting_for(stranded)
    assert re.fullmatch(
        r"No node offers \d+ of the \d+ tensors of layers 0:3 of 8 of [0-9a-f]{64} now, such as .*", said
    )
    assert stranded.stop() == 0
    # Layer 2 is that of the late stage.
    assert layers_of(HeldWeights.read(whole_tensors.weights_of("stranded"))) == {2}


def waiting_for(node: Node) -> str:
    """The event of a node that waits for weights, after it has fetched some."""
    while node.process.poll() is None:
        for line in node.log.read_text().splitlines():
            event = json.loads(line) if line.startswith("{") else {}
            if event.get("event") == "waiting_for_weights" and event.get("bytes"):
                return str(event["said"])
        time.sleep(0.2)
    raise AssertionError(node.log.read_text())
