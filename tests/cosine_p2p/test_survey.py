"""Tests of the survey of nodes."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, cast

import pytest

from cosine_p2p.survey import NodeSight, Surveyor
from cosine_p2p.transport.base import Stream, StreamHandler
from cosine_p2p.transport.channel import Channel, serve_channel
from cosine_protocol.codec import Message
from cosine_protocol.discover import STATUS, AskStatus
from cosine_protocol.records import Role
from cosine_protocol.stream import Error
from tests.cosine_p2p.plain_swarm import PlainSwarm, account
from tests.cosine_p2p.samples import TARGET
from tests.scenes import in_virtual_time


@asynccontextmanager
async def surveying(swarm: PlainSwarm, **options: Any) -> AsyncIterator[Surveyor]:
    surveyor = Surveyor(swarm, target=TARGET, **{"ask_timeout_s": 4.0, **options})
    yield surveyor
    await surveyor.close()
    await swarm.close()


async def silent(stream: Stream) -> None:
    await asyncio.sleep(100)


def answering(reply: Callable[[AskStatus], Message]) -> StreamHandler:
    def answer(channel: Channel, message: Message) -> None:
        channel.post(reply(cast(AskStatus, message)))

    return lambda stream: serve_channel(stream, STATUS, answer)


async def babbling(stream: Stream) -> None:
    await stream.write(b"\x00\x00\x00\x01\x00")
    await asyncio.sleep(100)


@pytest.mark.parametrize(
    ("handler", "reason"),
    [
        (None, "no such peer"),
        (silent, "no answer within 4 s"),
        (answering(lambda asked: Error(asked.number, 7, "too busy to say", 1.0)), "too busy to say"),
        (answering(lambda asked: asked), "it answered with AskStatus"),
        (babbling, "it broke the protocol"),
    ],
)
@in_virtual_time
async def test_a_silent_node_is_listed_with_the_reason(handler: StreamHandler | None, reason: str) -> None:
    swarm = PlainSwarm()
    await swarm.announce(1, handler)
    await swarm.announce(2, account(), role=Role.VERIFIER)
    async with surveying(swarm) as surveyor:
        survey = await surveyor.survey()
    healthy, sick = survey.nodes
    assert reason in sick.reason
    assert sick == NodeSight(record=sick.record, reason=sick.reason)
    assert (healthy.reason, survey.problem) == ("", "")
