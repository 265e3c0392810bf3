"""Faults during a generation: another verifier continues, SIGTERM is orderly."""

import asyncio
from collections.abc import Iterator
from typing import Final

import pytest

from cosine_p2p import AsyncClient
from tests.e2e.conftest import EMULATED, Swarm
from tests.e2e.nodes import Node, starting
from tests.e2e.reference import PROMPT, encoded, greedy

pytestmark = [pytest.mark.network, pytest.mark.timeout(300)]

NEW_TOKENS: Final = 48
PAIR_NETWORK: Final = "pair"
KILL_AFTER_TOKENS: Final = 8
SLOWER: Final = "90/6@10"


@pytest.fixture(scope="module")
def pair(swarm: Swarm) -> Iterator[tuple[Node, Node]]:
    """Two verifiers of a network of their own; the first is the faster one."""
    target = ("join", "--role", "verifier", "--model", "zoo:target", "--network", PAIR_NETWORK)
    place = ("--threads", "1", "--dtype", "float32", "--emulate")
    with starting(swarm.folder) as start:
        first = start("first", *target, *place, EMULATED).wait_ready()
        yield first, start("second", *target, *place, SLOWER, "--initial-peers", first.maddr).wait_ready()


@pytest.mark.thorough
def test_a_second_verifier_continues_the_same_text(pair: tuple[Node, Node]) -> None:
    # Both are idle, so the faster one is asked first.
    doomed, heir = pair

    async def play() -> None:
        async with AsyncClient([heir.maddr], memory=False, network=PAIR_NETWORK, dtype="float32") as client:
            run = await client.start(PROMPT, strategy="plain", max_new_tokens=NEW_TOKENS)
            tokens = 0
            async for chunk in run.chunks():
                tokens += len(chunk.token_ids)
                if tokens >= KILL_AFTER_TOKENS:
                    doomed.kill()
        done = run.result()
        assert done.token_ids == greedy(encoded(PROMPT), NEW_TOKENS)
        assert [report.peer_id for report in done.swarm.verifiers] == [doomed.peer_id, heir.peer_id]

    asyncio.run(play())


@pytest.mark.thorough
def test_sigterm_drains_and_exits_0(pair: tuple[Node, Node]) -> None:
    verifier = next(node for node in pair if node.process.poll() is None)

    async def play() -> tuple[int, ...]:
        async with AsyncClient([verifier.maddr], memory=False, network=PAIR_NETWORK, dtype="float32") as client:
            run = await client.start(PROMPT, strategy="plain", max_new_tokens=24)
            async for _ in run.chunks():
                verifier.process.terminate()
        return run.result().token_ids

    assert asyncio.run(play()) == greedy(encoded(PROMPT), 24)
    assert verifier.process.wait(timeout=30) == 0
    last = verifier.events.get(timeout=5)
    assert last is not None
    assert (last["event"], last["emulated"], last["passes"] >= 24) == ("stopped", SLOWER, True)
    assert "Traceback" not in verifier.log.read_text()
