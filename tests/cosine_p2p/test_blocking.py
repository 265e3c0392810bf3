"""The blocking client, on an event loop of its own thread."""

import asyncio
import random
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import CancelledError
from typing import Any

import pytest

from cosine_lab.simulation.letter_codec import LetterCodec
from cosine_lab.simulation.swarm import SimulatedSwarm
from cosine_node.engine.curve import CostCurve
from cosine_p2p.blocking import Client
from cosine_p2p.client import Swarm
from cosine_p2p.directory.directory import MemoryDirectory
from cosine_p2p.request.results import Chunk, Generation
from cosine_p2p.text.tokenizer import TextCodec
from cosine_p2p.trust.mandates import Mandates
from cosine_protocol.errors import GenerationFailed, UsageError
from cosine_protocol.records import Role
from cosine_protocol.request import Sampling
from tests.swarm.reference import draft_engine, plain_stream, prompt_of, target_engine

PROMPT = prompt_of(random.Random("blocking"))
EXPECTED = plain_stream(PROMPT, Sampling(), tokens=24)
FAST = CostCurve(((1, 0.0005), (32, 0.0006)))


class InProcess:
    """A swarm that lives on the client's own loop and ends with it."""

    def __init__(self, swarm: SimulatedSwarm) -> None:
        self.swarm = swarm
        self.transport = swarm.network.join("blocking-client")
        self.directory: MemoryDirectory = swarm.directory
        self.mandates: Mandates | None = None

    def choose_digest(self, name: str, offered: Mapping[bytes, int]) -> bytes:
        return min(offered)

    async def text_codec(self, verifiers: object) -> TextCodec:
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


def test_generate(client: Client) -> None:
    assert client.generate(PROMPT, max_new_tokens=24).token_ids == EXPECTED


def test_stream(client: Client) -> None:
    chunks = list(client.stream(PROMPT, max_new_tokens=24))
    assert "".join(chunk.text for chunk in chunks) == LetterCodec().decode(EXPECTED)


def test_a_stream_ends_with_its_generation(client: Client) -> None:
    stream = client.stream(PROMPT, max_new_tokens=24)
    chunks: list[Chunk] = []
    with pytest.raises(StopIteration) as end:
        while True:
            chunks.append(next(stream))
    assert isinstance(end.value.value, Generation)
    assert end.value.value.token_ids == tuple(token for chunk in chunks for token in chunk.token_ids) == EXPECTED


def test_generations_may_be_begun_side_by_side_and_given_up(client: Client) -> None:
    futures = [client.submit(PROMPT, max_new_tokens=24) for _ in range(3)]
    given_up = client.submit(PROMPT, max_new_tokens=1000)
    given_up.cancel()
    assert [future.result().token_ids for future in futures] == [EXPECTED] * 3
    with pytest.raises(CancelledError):
        given_up.result()


def test_who_would_be_asked(client: Client) -> None:
    assert [record.role for record in client.find_verifiers()] == [Role.VERIFIER]


def test_a_stream_may_be_left_early(client: Client) -> None:
    for chunk in client.stream(PROMPT, max_new_tokens=1000):
        assert chunk.token_ids[0] == EXPECTED[0]
        break
    assert client.generate(PROMPT, max_new_tokens=24).token_ids == EXPECTED


def test_errors_arrive_where_they_were_caused(client: Client) -> None:
    with pytest.raises(UsageError, match="empty"):
        client.generate("")
    with pytest.raises(UsageError, match="empty"):
        list(client.stream(""))


def test_threads_share_a_client(client: Client) -> None:
    texts: list[tuple[int, ...]] = []

    def use() -> None:
        texts.append(client.generate(PROMPT, max_new_tokens=24).token_ids)

    threads = [threading.Thread(target=use) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert texts == [EXPECTED] * 4


def test_nobody_to_serve() -> None:
    with Client(join=joining(verifiers=0)) as client, pytest.raises(GenerationFailed, match="No verifier serves"):
        client.generate(PROMPT)


def test_closing_ends_the_thread_and_may_be_repeated() -> None:
    client = Client(join=joining())
    client.close()
    client.close()
    assert "cosine-client" not in {thread.name for thread in threading.enumerate()}


def test_a_join_that_fails_leaves_no_thread() -> None:
    async def join() -> Swarm:
        await asyncio.sleep(0)
        raise UsageError("no such network")

    with pytest.raises(UsageError, match="no such network"):
        Client(join=join)
    assert "cosine-client" not in {thread.name for thread in threading.enumerate()}
