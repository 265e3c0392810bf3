"""What breaks during a generation: another verifier continues, a lost one is named, SIGTERM is orderly.

The test that kills the fragile verifier comes last.
"""

import asyncio
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Final

import pytest

from cosine_p2p import AsyncClient
from cosine_p2p.session.run import Run
from cosine_p2p.transport.patience import PATIENCE_VARIABLE
from cosine_protocol.errors import GenerationFailed
from tests.e2e.conftest import EMULATED, Swarm
from tests.e2e.nodes import Node
from tests.e2e.reference import encoded, greedy

pytestmark = [pytest.mark.network, pytest.mark.timeout(300)]

PROMPT: Final = "The old lighthouse keeper opened the door and"
NEW_TOKENS: Final = 48
FAULT_NETWORK: Final = "faults"
PAIR_NETWORK: Final = "pair"
KILL_AFTER_TOKENS: Final = 8
SLOWER: Final = "90/6@10"


def client_of(verifier: Node) -> AsyncClient:
    return AsyncClient([verifier.maddr], memory=False, network=FAULT_NETWORK, dtype="float32")


def started(stack: ExitStack, folder: Path, name: str, *arguments: str, emulated: str = EMULATED) -> Node:
    place = ("--threads", "1", "--dtype", "float32", "--emulate", emulated)
    node = Node.start(name, ("join", *arguments, *place), folder)
    stack.callback(node.close)
    return node


@pytest.fixture(scope="module")
def pair(swarm: Swarm) -> Iterator[tuple[Node, Node]]:
    """Two verifiers of a network of their own; the first is the faster one."""
    target = ("--role", "verifier", "--model", "zoo:target", "--network", PAIR_NETWORK)
    with ExitStack() as stack:
        first = started(stack, swarm.folder, "first", *target).wait_ready()
        peers = ("--initial-peers", first.maddr)
        second = started(stack, swarm.folder, "second", *target, *peers, emulated=SLOWER)
        yield first, second.wait_ready()


@pytest.fixture(scope="module")
def fragile(swarm: Swarm) -> Iterator[Node]:
    """A verifier that is killed in the end."""
    with ExitStack() as stack:
        target = ("--role", "verifier", "--model", "zoo:target", "--network", FAULT_NETWORK)
        yield started(stack, swarm.folder, "fragile", *target).wait_ready()


async def killing(run: Run, node: Node) -> float:
    """Consume a run and kill a node once some tokens have come; the time of the kill."""
    tokens, killed_at_s = 0, 0.0
    async for chunk in run.chunks():
        tokens += len(chunk.token_ids)
        if tokens >= KILL_AFTER_TOKENS and not killed_at_s:
            node.kill()
            killed_at_s = time.perf_counter()
    return killed_at_s


@pytest.mark.thorough
def test_a_second_verifier_continues_the_same_text(pair: tuple[Node, Node]) -> None:
    # Both are idle, so the faster one is asked first.
    doomed, heir = pair

    async def play() -> None:
        async with AsyncClient([heir.maddr], memory=False, network=PAIR_NETWORK, dtype="float32") as client:
            run = await client.start(PROMPT, strategy="plain", max_new_tokens=NEW_TOKENS)
            assert await killing(run, doomed)
        done = run.result()
        assert done.token_ids == greedy(encoded(PROMPT), NEW_TOKENS)
        assert [report.peer_id for report in done.verifiers] == [doomed.peer_id, heir.peer_id]

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


@pytest.mark.thorough
def test_a_killed_verifier_is_named_within_ten_seconds_where_nobody_waits(
    fragile: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(PATIENCE_VARIABLE, "0")

    async def play() -> float:
        async with client_of(fragile) as client:
            run = await client.start(PROMPT, strategy="plain", max_new_tokens=400)
            killed_at_s = 0.0
            tokens = 0
            with pytest.raises(GenerationFailed, match=fragile.peer_id) as caught:
                async for chunk in run.chunks():
                    tokens += len(chunk.token_ids)
                    if tokens >= KILL_AFTER_TOKENS and not killed_at_s:
                        fragile.kill()
                        killed_at_s = time.perf_counter()
            assert "\n" not in str(caught.value)
            return time.perf_counter() - killed_at_s

    assert asyncio.run(play()) < 10.0
