"""Tests of the blocking client and of its event loop in a thread."""

import asyncio
import inspect
import random
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from concurrent.futures import CancelledError
from contextlib import asynccontextmanager
from typing import Any

import pytest

from cosine_lab.emulation.memory_directory import MemoryDirectory
from cosine_lab.simulation.swarm import SimulatedSwarm
from cosine_node.engine.curve import CostCurve
from cosine_p2p.blocking import Client, LoopThread
from cosine_p2p.client import Swarm
from cosine_p2p.request.options import GenerationOptions
from cosine_p2p.request.results import Chunk, Generation
from cosine_p2p.text.tokenizer import TextTokenizer
from cosine_p2p.trust.mandates import Mandates
from cosine_protocol.errors import UsageError
from cosine_protocol.request import Sampling
from tests.swarm.reference import draft_engine, plain_stream, prompt_of, target_engine

PROMPT = prompt_of(random.Random("blocking"))
EXPECTED = plain_stream(PROMPT, Sampling(), tokens=24)
FAST = CostCurve(((1, 0.0005), (32, 0.0006)))


class InProcess:
    """A swarm on the client's event loop."""

    def __init__(self, swarm: SimulatedSwarm) -> None:
        self.swarm = swarm
        self.transport = swarm.network.join("blocking-client")
        self.directory: MemoryDirectory = swarm.directory
        self.mandates: Mandates | None = None

    def choose_digest(self, name: str, offered: Mapping[bytes, int]) -> bytes:
        return min(offered)

    async def text_codec(self, verifiers: object) -> TextTokenizer:
        return self.swarm.codec

    async def close(self) -> None:
        await self.transport.close()
        await self.swarm.__aexit__(None, None, None)


def joining(*, verifiers: int = 1) -> Callable[[], Any]:
    async def join() -> Swarm:
        swarm = await SimulatedSwarm(one_way_s=0.0).__aenter__()
        for _ in range(verifiers):
            await swarm.verifier(target_engine(), curve=FAST)
        await swarm.drafter(draft_engine(0.8), curve=FAST)
        return InProcess(swarm)

    return join


@pytest.fixture
def client() -> Iterator[Client]:
    with Client(join=joining()) as made:
        yield made


def test_a_stream_ends_with_its_generation(client: Client) -> None:
    stream = client.stream(PROMPT, max_new_tokens=24)
    chunks: list[Chunk] = []
    with pytest.raises(StopIteration) as end:
        while True:
            chunks.append(next(stream))
    assert isinstance(end.value.value, Generation)
    assert end.value.value.token_ids == tuple(token for chunk in chunks for token in chunk.token_ids) == EXPECTED


def test_a_stream_is_checked_at_once_and_can_be_left_in_the_middle(client: Client) -> None:
    with pytest.raises(UsageError, match="max_new_tokens"):
        client.stream(PROMPT, max_new_tokens=-1)
    with client.stream(PROMPT, max_new_tokens=1000) as stream:
        first = next(stream)
    assert EXPECTED[: len(first.token_ids)] == first.token_ids
    with pytest.raises(CancelledError):
        _ = stream.result
    whole = client.stream(PROMPT, max_new_tokens=24)
    assert whole.result.token_ids == EXPECTED
    assert tuple(token for chunk in whole for token in chunk.token_ids) == EXPECTED
    assert list(whole) == []


def test_help_explains_each_option() -> None:
    told = inspect.getdoc(Client.generate)
    assert told is not None and "max_new_tokens: Maximum" in told and "Who serves:" in told
    assert all(f"    {name}: " in told for name in GenerationOptions.__annotations__)
    assert "    swarm: " in str(inspect.getdoc(Client.__init__))


def test_generations_may_be_begun_side_by_side_and_given_up(client: Client) -> None:
    futures = [client.submit(PROMPT, max_new_tokens=24) for _ in range(3)]
    given_up = client.submit(PROMPT, max_new_tokens=1000)
    given_up.cancel()
    assert [future.result().token_ids for future in futures] == [EXPECTED] * 3
    with pytest.raises(CancelledError):
        given_up.result()


NAME = "loop-thread-test"


class Context:
    """A context that records events, and leaves a sleeping task behind."""

    def __init__(self) -> None:
        self.events: list[str] = []
        self.is_begun = threading.Event()

    @asynccontextmanager
    async def __call__(self) -> AsyncIterator[None]:
        self.sleeping = asyncio.create_task(asyncio.sleep(3600))
        self.events.append("entered")
        yield
        self.events.append("left")

    async def wait_for_ever(self) -> None:
        self.events.append("begun")
        self.is_begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            self.events.append("cancelled")


def test_closing_ends_what_runs_before_the_context_and_says_so() -> None:
    context = Context()
    thread = LoopThread(context(), name=NAME)
    future = thread.submit(context.wait_for_ever)
    context.is_begun.wait()
    thread.close()
    assert context.events == ["entered", "begun", "cancelled", "left"]
    with pytest.raises(UsageError, match="is closed"):
        thread.wait(future)
    with pytest.raises(UsageError, match="is closed"):
        thread.submit(context.wait_for_ever)
