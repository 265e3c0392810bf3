"""The status service: a node's own account, as often as it is asked."""

import asyncio
from random import Random

import pytest

from cosine_lab.emulation.memory_transport import MemoryNetwork
from cosine_lab.emulation.virtual_loop import run_virtual
from cosine_node.serving.status_service import StatusService
from cosine_p2p.directory.vivaldi import Vivaldi
from cosine_p2p.transport.channel import Channel
from cosine_protocol import messages as m
from cosine_protocol.errors import ErrorCode, PeerLost
from cosine_protocol.protocols import STATUS


async def asked(*questions: m.Message, after_s: float = 0.0, vivaldi: Vivaldi | None = None) -> list[m.Message]:
    counts = iter(range(100))
    network = MemoryNetwork()
    server, client = network.join("server"), network.join("client")
    service = StatusService(lambda: (b"record", 3, next(counts)), vivaldi=vivaldi)
    await server.serve(STATUS, service.handle)
    await asyncio.sleep(after_s)
    answers = []
    async with Channel(await client.dial("server", STATUS), STATUS) as channel:
        for question in questions:
            channel.post(question)
            answers.append(await channel.receive())
    await client.close()
    await server.close()
    return answers


def test_each_question_is_answered_anew() -> None:
    first, second = run_virtual(asked(m.AskStatus(4), m.AskStatus(5), after_s=12.5))
    assert isinstance(first, m.Status) and isinstance(second, m.Status)
    assert (first.number, first.record, first.requests, first.steps) == (4, b"record", 3, 0)
    assert (second.number, second.steps) == (5, 1)
    assert first.uptime_s == pytest.approx(12.5)


def test_a_node_that_knows_its_place_tells_it() -> None:
    (silent,) = run_virtual(asked(m.AskStatus(1)))
    assert isinstance(silent, m.Status) and silent.coordinate is None
    vivaldi = Vivaldi(Random(0).random)
    (answer,) = run_virtual(asked(m.AskStatus(1), vivaldi=vivaldi))
    assert isinstance(answer, m.Status) and answer.coordinate == vivaldi.coordinate


def test_what_is_no_question_is_an_error_and_the_stream_goes_on() -> None:
    error, answer = run_virtual(asked(m.Status(1, b"", 0, 0, 0.0), m.AskStatus(2)))
    assert isinstance(error, m.Error) and error.code == ErrorCode.MALFORMED
    assert isinstance(answer, m.Status)


def test_a_message_of_another_protocol_ends_the_stream() -> None:
    with pytest.raises(PeerLost):
        run_virtual(asked(m.Cancel(1), m.AskStatus(1)))
