"""A stage that lies, as a process: its head finds it by one text, and the next text is that of the whole model."""

import asyncio
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

import pytest

from cosine_p2p import AsyncClient
from tests.e2e.reference import encoded, greedy
from tests.e2e.stages import NETWORK, StageSwarm, stage_swarm

pytestmark = [pytest.mark.network, pytest.mark.thorough, pytest.mark.timeout(600)]

LIAR: Final = (sys.executable, "-m", "tests.e2e.lying_stage")
PROMPT: Final = "The old lighthouse keeper opened the door and"
TOKENS: Final = 32
LOOKED_UP_S: Final = 60.0
"""A head looks for stages every ten seconds, on a machine that may be busy."""


def wait_until(holds: Callable[[], bool]) -> None:
    until_s = time.monotonic() + LOOKED_UP_S
    while not holds():
        assert time.monotonic() < until_s
        time.sleep(0.2)


async def text(swarm: StageSwarm) -> tuple[int, ...]:
    async with AsyncClient([swarm.boot.maddr], network=NETWORK, dtype="float32") as client:
        return (await client.generate(PROMPT, strategy="plain", max_new_tokens=TOKENS)).token_ids


def test_a_stage_that_lies_is_found_and_the_next_text_is_right(tmp_path: Path) -> None:
    with stage_swarm(tmp_path) as swarm:
        swarm.begin_head()
        swarm.begin_stage("liar", "0:3", command=LIAR)
        swarm.begin_stage("second", "3:8")
        for node in swarm.nodes.values():
            node.wait_ready()
        assert swarm.serving("0:3") == "liar"
        right = greedy(encoded(PROMPT), TOKENS)
        # Nobody else is there, who could show it.
        assert asyncio.run(text(swarm)) != right
        for name in ("one", "other"):
            swarm.begin_stage(name, "0:3")
        for name in ("one", "other"):
            swarm.nodes[name].wait_ready()
        log = swarm.nodes["head"].log

        def is_found() -> bool:
            # Until the head has heard of the others, no text is checked.
            asyncio.run(text(swarm))
            return "lied" in log.read_text()

        wait_until(is_found)
        assert f"{swarm.nodes['liar'].peer_id} lied" in log.read_text()
        assert asyncio.run(text(swarm)) == right
        assert swarm.serving("0:3") in ("one", "other")
