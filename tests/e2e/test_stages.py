"""Stages as processes: texts are those of the whole model, also if a stage is killed.

The tests that kill stages come last.
"""

import asyncio
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import pytest

from cosine_p2p import AsyncClient
from cosine_protocol.errors import GenerationFailed
from tests.e2e.nodes import READY_TIMEOUT_S, Node, close_all, own_home
from tests.e2e.reference import PROMPT, encoded, greedy

pytestmark = [pytest.mark.network, pytest.mark.thorough, pytest.mark.timeout(300)]

NEW_TOKENS: Final = 48
LONG: Final = 256
KILL_AFTER_TOKENS: Final = 24
NETWORK: Final = "parts"
NOBODY: Final = "Layers 0:8 of 8 are held by nobody."


@dataclass(slots=True)
class StageSwarm:
    """The processes by name; the bootstrap node is never hurt."""

    folder: Path
    boot: Node
    nodes: dict[str, Node] = field(default_factory=dict)

    def begin(self, name: str, *arguments: str) -> Node:
        """Start a node, which is not ready yet."""
        place = ("--network", NETWORK, "--threads", "1", "--initial-peers", self.boot.maddr)
        self.nodes[name] = Node.start(name, ("join", *arguments, *place), self.folder)
        return self.nodes[name]

    def begin_stage(self, name: str, layers: str) -> Node:
        options = ("--model", "zoo:target", "--layers", layers, "--memory", "400MB", "--dtype", "float32")
        return self.begin(name, "--role", "stage", *options)

    def serving(self) -> str:
        """The name of the stage that holds the last layers in the head's latest chain, by its log."""
        chains = [line for line in self.nodes["head"].log.read_text().splitlines() if "a chain over" in line]
        found = re.search(r"Layers 3:8 at (\w+)", chains[-1])
        assert found is not None, chains
        return next(name for name, node in self.nodes.items() if node.ready.get("peer_id") == found[1])


@pytest.fixture(scope="module")
def parts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StageSwarm]:
    """Two stages with all layers, a spare of the second, a head with its own drafter, and another drafter."""
    folder = tmp_path_factory.mktemp("parts")
    with own_home(folder / "home"):
        swarm = StageSwarm(folder, Node.start("boot", ("bootstrap", "--network", NETWORK), folder))
        try:
            swarm.boot.wait_ready()
            head = ("--over-stages", "--model", "zoo:target", "--draft-model", "zoo:draft-general")
            swarm.begin("head", "--role", "verifier", *head).wait_said(NOBODY)
            for name, layers in (("first", "0:3"), ("second", "3:8"), ("spare", "3:8")):
                swarm.begin_stage(name, layers)
            swarm.begin("drafter", "--role", "drafter", "--model", "zoo:draft-literature", "--dtype", "float32")
            for node in swarm.nodes.values():
                node.wait_ready()
            yield swarm
        finally:
            close_all([swarm.boot, *swarm.nodes.values()])


def test_the_text_is_that_of_the_whole_model(parts: StageSwarm) -> None:
    async def play() -> None:
        async with AsyncClient([parts.boot.maddr], memory=False, network=NETWORK, dtype="float32") as client:
            run = await client.start(PROMPT, strategy="cosine", max_new_tokens=2 * NEW_TOKENS)
            async for _ in run.chunks():
                pass
        done = run.result()
        assert done.token_ids == greedy(encoded(PROMPT), 2 * NEW_TOKENS)
        assert [report.peer_id for report in done.swarm.verifiers] == [parts.nodes["head"].peer_id]
        assert done.swarm.drafted > 0

    asyncio.run(play())


async def killing(parts: StageSwarm) -> tuple[int, ...]:
    """The text of a request, while the last stage is killed."""
    killed = False
    tokens = 0
    async with AsyncClient([parts.boot.maddr], memory=False, network=NETWORK, dtype="float32") as client:
        run = await client.start(PROMPT, strategy="plain", max_new_tokens=LONG)
        async for chunk in run.chunks():
            tokens += len(chunk.token_ids)
            if not killed and tokens >= KILL_AFTER_TOKENS:
                killed = True
                parts.nodes[parts.serving()].kill()
    assert killed
    return run.result().token_ids


def test_a_text_goes_on_over_a_spare(parts: StageSwarm) -> None:
    before = parts.serving()
    assert asyncio.run(killing(parts)) == greedy(encoded(PROMPT), LONG)
    assert {before, parts.serving()} == {"second", "spare"}


def test_without_a_spare_the_layers_are_named_and_a_stage_that_comes_is_served_with(parts: StageSwarm) -> None:
    with pytest.raises(GenerationFailed, match=r"Layers 3:8 of 8 are held by nobody"):
        asyncio.run(killing(parts))
    head = parts.nodes["head"]
    stopped = head.events.get(timeout=READY_TIMEOUT_S)
    assert stopped is not None and stopped["event"] == "stopped"
    parts.begin_stage("third", "3:8").wait_ready()
    head.wait_ready()
    test_the_text_is_that_of_the_whole_model(parts)
