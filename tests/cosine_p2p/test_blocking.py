"""Tests of the blocking client and of its event loop in a thread."""

import asyncio
import gc
import inspect
import random
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import CancelledError
from typing import Any

import pytest

from cosine_engine.curve import CostCurve
from cosine_lab.emulation.memory_directory import MemoryDirectory
from cosine_lab.simulation.swarm import SimulatedSwarm
from cosine_p2p.blocking import Client, LoopThread
from cosine_p2p.client import Swarm
from cosine_p2p.request.options import GenerationOptions
from cosine_p2p.request.results import Chunk, Generation
from cosine_p2p.text.tokenizer import TextTokenizer
from cosine_p2p.trust.mandates import Mandates
from cosine_protocol.errors import PeerLost, UsageError
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


def test_a_client_joins_with_its_first_call_and_leaves_when_nobody_has_it() -> None:
    joined: list[str] = []
    left = threading.Event()

    class Noted(InProcess):
        async def close(self) -> None:
            await super().close()
            left.set()

    async def join() -> Swarm:
        joined.append("attempt")
        if len(joined) == 1:
            raise PeerLost("peer", "nobody answers")
        return Noted((await joining()()).swarm)

    client = Client(join=join)
    thread = weakref.ref(client._thread)
    assert joined == []
    with pytest.raises(UsageError, match="max_new_tokens"):
        client.generate(PROMPT, max_new_tokens=-1)
    with pytest.raises(PeerLost):
        client.generate(PROMPT, max_new_tokens=24)
    stream = client.stream(PROMPT, max_new_tokens=24)
    future = client.submit(PROMPT, max_new_tokens=24)
    del client
    # The stream and the future still have it.
    assert (stream.result.token_ids, future.result().token_ids) == (EXPECTED, EXPECTED)
    assert len(joined) == 2 and not left.is_set()
    del stream, future
    gc.collect()
    assert left.wait(10.0)
    while thread() is not None:
        gc.collect()


class Work:
    """Work that records what happens to it."""

    def __init__(self) -> None:
        self.events: list[str] = []
        self.is_begun = threading.Event()

    async def wait_for_ever(self) -> None:
        self.sleeping = asyncio.create_task(asyncio.sleep(3600))
        self.events.append("begun")
        self.is_begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            self.events.append("cancelled")

    async def leave(self) -> None:
        self.events.append("left")


def test_closing_ends_what_runs_before_it_leaves_and_says_so() -> None:
    work = Work()
    thread = LoopThread(work.leave, name="loop-thread-test")
    future = thread.submit(work.wait_for_ever)
    work.is_begun.wait()
    thread.close()
    assert work.events == ["begun", "cancelled", "left"] and work.sleeping.cancelled()
    with pytest.raises(UsageError, match="is closed"):
        thread.wait(future)
    with pytest.raises(UsageError, match="is closed"):
        thread.submit(work.wait_for_ever)
