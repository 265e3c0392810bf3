"""A stage that turns bad while a spare is idle, as processes: every text is right, over the spare."""

import asyncio
import signal
import sys
import time
from pathlib import Path
from typing import Final

import pytest

from cosine_p2p import AsyncClient
from tests.e2e.reference import encoded, greedy
from tests.e2e.stages import NETWORK, StageSwarm, stage_swarm
from tests.thoroughness import soak_rest

pytestmark = [pytest.mark.network, pytest.mark.thorough, pytest.mark.timeout(300)]

PROMPT: Final = "The old lighthouse keeper opened the door and"
NEW_TOKENS: Final = 24
BAD_STAGE: Final = (sys.executable, "-m", "tests.e2e.bad_stage")
KNOWN_S: Final = 11.0
"""A head looks for stages every ten seconds."""


async def ask(parts: StageSwarm, count: int) -> None:
    """So many texts one after the other, each of which is compared."""
    async with AsyncClient([parts.boot.maddr], network=NETWORK, dtype="float32") as client:
        for _ in range(count):
            done = await client.generate(PROMPT, strategy="plain", max_new_tokens=NEW_TOKENS)
            assert done.token_ids == greedy(encoded(PROMPT), NEW_TOKENS)


# `tests/swarm` plays every conduct in virtual time.
@pytest.mark.parametrize("conduct", soak_rest(["late", "refuse", "give back"]))
def test_a_stage_that_turns_bad_is_replaced_and_no_text_fails(conduct: str, tmp_path: Path) -> None:
    with stage_swarm(tmp_path) as parts:
        parts.begin_head()
        parts.begin_stage("first", "0:3")
        parts.begin_stage("bad", "3:8", command=("env", f"COSINE_TEST_CONDUCT={conduct}", *BAD_STAGE))
        for node in parts.nodes.values():
            node.wait_ready()
        parts.begin_stage("spare", "3:8").wait_ready()
        time.sleep(KNOWN_S)
        asyncio.run(ask(parts, 1))
        assert parts.serving("3:8") == "bad"
        parts.nodes["bad"].process.send_signal(signal.SIGUSR1)
        asyncio.run(ask(parts, 4))
        assert parts.serving("3:8") == "spare"
