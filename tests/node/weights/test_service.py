"""Serving of weights, and its limits."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace

import pytest

from cosine_lab.emulation.memory_transport import MemoryNetwork
from cosine_node.weights import service
from cosine_node.weights.service import IDLE_S, MAX_OF_PEER, MAX_STREAMS, WeightsService
from cosine_p2p.text.held_weights import HeldWeights
from cosine_p2p.transport.channel import Channel
from cosine_protocol.codec import Message
from cosine_protocol.errors import ErrorCode, PeerLost
from cosine_protocol.fields import MAX_CHUNK_BYTES
from cosine_protocol.stream import Error
from cosine_protocol.weights import MAX_TENSORS, WEIGHTS, AskWeights, WeightBytes, WeightKind
from tests.node.weights.models import tensors
from tests.scenes import in_real_time, in_virtual_time

NAME = "model.layers.0.up.weight"


@in_real_time
async def ask(
    service: WeightsService, *questions: Message, streams: int = 1, is_one_peer: bool = False
) -> list[Message]:
    """The answers on the last of several open streams, of different peers or of one."""
    network = MemoryNetwork()
    server = network.join("server")
    await server.serve(WEIGHTS, service.handle)
    peers = [network.join(f"client {number}") for number in range(1 if is_one_peer else streams)]
    answers: list[Message] = []
    async with AsyncExitStack() as opened:
        for number in range(streams):
            stream = await peers[number % len(peers)].dial("server", WEIGHTS)
            channel = await opened.enter_async_context(Channel(stream, WEIGHTS))
            channel.post(questions[0])
            answers = [await channel.receive()]
        for question in questions[1:]:
            channel.post(question)
            answers.append(await channel.receive())
    return answers


def question(known: HeldWeights, kind: WeightKind, index: int = 0, offset: int = 0) -> AskWeights:
    return AskWeights(7, known.content_digest, kind, index, offset)


def row_of(known: HeldWeights, name: str) -> int:
    return next(row for row, tensor in enumerate(known.manifest.tensors) if tensor.name == name)


def test_manifest_parts_digests_and_tensors_are_served(known: HeldWeights) -> None:
    row, size = row_of(known, NAME), len(tensors()[NAME][2])
    answers = ask(
        WeightsService(known),
        question(known, WeightKind.MANIFEST),
        question(known, WeightKind.PART, 1),
        question(known, WeightKind.DIGESTS, row),
        question(known, WeightKind.TENSOR, row, MAX_CHUNK_BYTES),
        question(known, WeightKind.TENSOR, row, size - 3),
        question(known, WeightKind.TENSOR, row, size + 3),
    )
    tensor = known.tensors[NAME].tensor
    assert answers == [
        WeightBytes(7, len(known.encoded), known.encoded),
        WeightBytes(7, 2, b"{}"),
        WeightBytes(7, 96, b"".join(tensor.digests)),
        WeightBytes(7, size, tensors()[NAME][2][MAX_CHUNK_BYTES:][:MAX_CHUNK_BYTES]),
        WeightBytes(7, size, tensors()[NAME][2][-3:]),
        WeightBytes(7, size, b""),
    ]


@pytest.mark.parametrize(
    ("kind", "index"), [(WeightKind.PART, 2), (WeightKind.DIGESTS, 0), (WeightKind.TENSOR, MAX_TENSORS)]
)
def test_what_is_not_there_is_refused(known: HeldWeights, kind: WeightKind, index: int) -> None:
    (answer,) = ask(WeightsService(replace(known, tensors={})), question(known, kind, index))
    assert isinstance(answer, Error) and (answer.number, answer.code) == (7, ErrorCode.NOT_HELD)


def test_another_model_is_refused(known: HeldWeights) -> None:
    (answer,) = ask(WeightsService(known), replace(question(known, WeightKind.MANIFEST), content_digest=bytes(32)))
    assert isinstance(answer, Error) and answer.code == ErrorCode.WRONG_TARGET


@pytest.mark.parametrize(("limit", "is_one_peer"), [(MAX_STREAMS, False), (MAX_OF_PEER, True)])
def test_streams_of_all_and_of_one_peer_are_limited(known: HeldWeights, limit: int, is_one_peer: bool) -> None:
    asked = question(known, WeightKind.MANIFEST)
    (last,) = ask(WeightsService(known), asked, streams=limit, is_one_peer=is_one_peer)
    assert isinstance(last, WeightBytes)
    (refused,) = ask(WeightsService(known), asked, streams=limit + 1, is_one_peer=is_one_peer)
    assert isinstance(refused, Error) and (refused.number, refused.code) == (0, ErrorCode.OVERLOADED)
    assert refused.retry_after_s is not None


@asynccontextmanager
async def client_of(known: HeldWeights) -> AsyncIterator[Channel]:
    """A stream to a service in virtual time."""
    network = MemoryNetwork()
    service = WeightsService(known)
    await network.join("server").serve(WEIGHTS, service.handle)
    async with Channel(await network.join("client").dial("server", WEIGHTS), WEIGHTS) as channel:
        yield channel


@in_virtual_time
async def test_a_peer_over_its_budget_is_answered_later(
    known: HeldWeights, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {"PIECE_RATE": 10.0, "PIECE_BURST": 5.0}.items():
        monkeypatch.setattr(service, name, value)
    async with client_of(known) as channel:
        for _ in range(15):
            channel.post(question(known, WeightKind.MANIFEST))
        for _ in range(15):
            assert isinstance(await channel.receive(), WeightBytes)
    assert asyncio.get_running_loop().time() == pytest.approx(1.0, abs=0.2)


@in_virtual_time
async def test_an_idle_stream_is_closed(known: HeldWeights) -> None:
    async with client_of(known) as channel:
        channel.post(question(known, WeightKind.MANIFEST))
        assert isinstance(await channel.receive(), WeightBytes)
        with pytest.raises(PeerLost):
            await channel.receive()
    assert asyncio.get_running_loop().time() == pytest.approx(IDLE_S, abs=1.0)
