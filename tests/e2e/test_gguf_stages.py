"""A GGUF file in four bits over stages that fetch their share, as processes: the whole file's texts."""

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest

from cosine_node import zoo
from cosine_node.gguf.unfolding import unfold
from cosine_node.gguf.writing import write_gguf
from cosine_p2p import AsyncClient
from cosine_p2p.text.held_weights import HeldWeights
from cosine_p2p.text.target import read_target_facts
from tests.e2e.nodes import Node, close_all
from tests.e2e.test_fetched_weights import NETWORK, Machines

pytestmark = [pytest.mark.network, pytest.mark.thorough, pytest.mark.timeout(300)]

STAGES: Final = {"first": "0:3", "second": "3:8"}
ENGINE: Final = ("--dtype", "float32", "--threads", "1")
PROMPTS: Final = ("The old lighthouse keeper opened the door and", "def reverse(text):\n")
NEW_TOKENS: Final = 16
MOST: Final = 1.15
"""Bound of the memory for weights, and of the disk, as a multiple of a stage's share of the file."""
VOCABULARY_BYTES: Final = 1 << 20
"""Bound of the size of this small model's tokenizer and metadata."""

Texts = list[tuple[int, ...]]


async def texts(maddr: str, digest: str, verifier: Node) -> Texts:
    """The texts of a node after each prompt, greedy and sampled."""
    found = []
    async with AsyncClient([maddr], memory=False, network=NETWORK, target=digest, audit=0.0) as client:
        for prompt in PROMPTS:
            for temperature in (0.0, 0.8):
                done = await client.generate(
                    prompt, strategy="plain", max_new_tokens=NEW_TOKENS, temperature=temperature, seed=11
                )
                assert done.verifiers[-1].peer_id == verifier.peer_id
                found.append(tuple(done.token_ids))
    return found


@dataclass(frozen=True, slots=True)
class Parts:
    """Stages and a head over them, and the texts of the whole file before they were alone."""

    machines: Machines
    digest: str
    expected: Texts


@pytest.fixture(scope="module")
def parts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Parts]:
    folder = tmp_path_factory.mktemp("gguf")
    file = folder / "target.gguf"
    write_gguf(zoo.folder("target"), file, weights="Q4_1")
    facts = read_target_facts(unfold(file, cache_folder=folder / "unfolded"), name="it")
    assert facts is not None
    machines, digest = Machines(folder), facts.digest().hex()
    try:
        machines.maddr = machines.start("boot", "bootstrap").wait_ready().maddr
        stored = ("--engine", "torch", "--quantize", "stored", *ENGINE)
        whole = machines.start("whole", "join", "--role", "verifier", "--model", str(file), *stored).wait_ready()
        expected = asyncio.run(texts(machines.maddr, digest, whole))
        for name, layers in STAGES.items():
            stage = ("--role", "stage", "--model", digest, "--layers", layers, "--memory", "2GiB")
            machines.start(name, "join", *stage, *ENGINE)
        for name in STAGES:
            machines.nodes[name].wait_ready()
        whole.close()
        head = ("--role", "verifier", "--over-stages", "--model", digest, "--threads", "1")
        machines.start("head", "join", *head).wait_ready()
        yield Parts(machines, digest, expected)
    finally:
        close_all(list(machines.nodes.values()))


def test_texts_are_those_of_the_whole_file_in_the_same_engine(parts: Parts) -> None:
    machines = parts.machines
    assert asyncio.run(texts(machines.maddr, parts.digest, machines.nodes["head"])) == parts.expected


def test_a_stage_takes_its_share_of_memory_and_of_the_disk(parts: Parts) -> None:
    for name in STAGES:
        held = HeldWeights.read(parts.machines.weights_of(name)).tensors.values()
        share_bytes = sum(placed.tensor.size_bytes for placed in held)
        assert int(parts.machines.nodes[name].ready["weights_bytes"]) <= MOST * share_bytes
        cache: Path = parts.machines.folder / name / "XDG_CACHE_HOME"
        stored_bytes = sum(file.stat().st_size for file in cache.rglob("*") if file.is_file())
        assert stored_bytes <= MOST * share_bytes + VOCABULARY_BYTES
