"""What breaks during a generation: drafters vanish unnoticed, a lost verifier is named, SIGTERM is orderly.

The test that kills the fragile verifier comes last.
"""

import asyncio
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Final

import pytest

from cosine_p2p import AsyncClient
from cosine_p2p.run import Run
from cosine_protocol.errors import GenerationFailed
from tests.e2e.conftest import EMULATED, FAULT_NETWORK, Swarm
from tests.e2e.nodes import Node
from tests.e2e.reference import encoded, greedy

pytestmark = [pytest.mark.network, pytest.mark.timeout(150)]

PROMPT: Final = "The old lighthouse keeper opened the door and"
NEW_TOKENS: Final = 48
PAIR_NETWORK: Final = "pair"
KILL_AFTER_TOKENS: Final = 8
SLOWER: Final = "90/6@10"


def client_of(swarm: Swarm) -> AsyncClient:
    return AsyncClient([swarm.fragile.maddr], network=FAULT_NETWORK, dtype="float32")


@dataclass(frozen=True, slots=True)
class Crew:
    """Nodes that die in this module: two verifiers of one network, two drafters of the fragile verifier's."""

    verifiers: list[Node]
    drafters: list[Node]


@pytest.fixture(scope="module")
def crew(swarm: Swarm) -> Iterator[Crew]:
    place = ("--threads", "1", "--dtype", "float32", "--emulate")
    target = ("--role", "verifier", "--model", "zoo:target", "--network", PAIR_NETWORK)
    fragile = ("--role", "drafter", "--network", FAULT_NETWORK, "--initial-peers", swarm.fragile.maddr)
    with ExitStack() as stack:

        def started(name: str, *arguments: str, emulated: str = EMULATED) -> Node:
            node = Node.start(name, ("join", *arguments, *place, emulated), swarm.folder)
            stack.callback(node.close)
            return node

        first = started("first", *target).wait_ready()
        second = started("second", *target, "--initial-peers", first.maddr, emulated=SLOWER)
        mortal = started("mortal", *fragile, "--model", "zoo:draft-literature")
        ngram = started("ngram", *fragile, "--model", "ngram")
        yield Crew([first, second.wait_ready()], [mortal.wait_ready(), ngram.wait_ready()])


async def killing(run: Run, nodes: list[Node]) -> float:
    """Consume a run, kill nodes once some tokens have come; when that was."""
    tokens, killed_at_s = 0, 0.0
    async for chunk in run.chunks():
        tokens += len(chunk.token_ids)
        if tokens >= KILL_AFTER_TOKENS and not killed_at_s:
            for node in nodes:
                node.kill()
            killed_at_s = time.perf_counter()
    return killed_at_s


def test_a_second_verifier_continues_the_same_text(swarm: Swarm, crew: Crew) -> None:
    # Both are idle, so the faster one is asked first.
    doomed, heir = crew.verifiers

    async def play() -> None:
        async with AsyncClient([heir.maddr], network=PAIR_NETWORK, dtype="float32") as client:
            run = await client.start(PROMPT, strategy="plain", max_new_tokens=NEW_TOKENS)
            assert await killing(run, [doomed])
        done = run.result()
        assert done.token_ids == greedy(encoded(PROMPT), NEW_TOKENS)
        assert [report.peer_id for report in done.verifiers] == [doomed.peer_id, heir.peer_id]

    asyncio.run(play())


def test_sigterm_drains_and_exits_0(swarm: Swarm, crew: Crew) -> None:
    verifier = next(node for node in crew.verifiers if node.process.poll() is None)

    async def play() -> tuple[int, ...]:
        async with AsyncClient([verifier.maddr], network=PAIR_NETWORK, dtype="float32") as client:
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


def test_killed_drafters_change_nothing(swarm: Swarm, crew: Crew) -> None:
    async def play() -> None:
        async with client_of(swarm) as client:
            run = await client.start(PROMPT, strategy="cosine", max_new_tokens=NEW_TOKENS)
            assert await killing(run, crew.drafters)
        done = run.result()
        assert done.token_ids == greedy(encoded(PROMPT), NEW_TOKENS)
        helpers = {report.peer_id for report in done.drafters}
        assert helpers and helpers <= {node.peer_id for node in crew.drafters}
        assert done.drafted > 0

    asyncio.run(play())


def test_a_killed_verifier_is_named_within_ten_seconds(swarm: Swarm) -> None:
    async def play() -> float:
        async with client_of(swarm) as client:
            run = await client.start(PROMPT, strategy="plain", max_new_tokens=400)
            killed_at_s = 0.0
            tokens = 0
            with pytest.raises(GenerationFailed, match=swarm.fragile.peer_id) as caught:
                async for chunk in run.chunks():
                    tokens += len(chunk.token_ids)
                    if tokens >= KILL_AFTER_TOKENS and not killed_at_s:
                        swarm.fragile.kill()
                        killed_at_s = time.perf_counter()
            assert "\n" not in str(caught.value)
            return time.perf_counter() - killed_at_s

    assert asyncio.run(play()) < 10.0
