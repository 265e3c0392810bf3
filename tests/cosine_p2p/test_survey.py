"""The survey: every announced node in order, with its own account or the reason why there is none."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from cosine_lab.emulation.memory_directory import MemoryDirectory
from cosine_p2p.survey import NodeSight, Surveyor
from cosine_p2p.transport.base import Stream, StreamHandler
from cosine_p2p.transport.channel import Channel, serve_channel
from cosine_protocol import messages as m
from cosine_protocol.protocols import STATUS
from cosine_protocol.records import Role
from tests.cosine_p2p.plain_swarm import ONE_WAY_S, PlainSwarm, account
from tests.cosine_p2p.samples import TARGET
from tests.scenes import in_virtual_time


@asynccontextmanager
async def surveying(swarm: PlainSwarm, *, target: str = TARGET, **options: Any) -> AsyncIterator[Surveyor]:
    surveyor = Surveyor(swarm, target=target, **{"ask_timeout_s": 4.0, **options})
    yield surveyor
    await surveyor.close()
    await swarm.close()


@in_virtual_time
async def test_a_node_gives_an_account_of_itself() -> None:
    swarm = PlainSwarm()
    await swarm.announce(1, account(requests=3, passes=70))
    await asyncio.sleep(12.5)
    async with surveying(swarm) as surveyor:
        (sight,) = (await surveyor.survey()).nodes
    assert (sight.requests, sight.passes, sight.reason) == (3, 70, "")
    assert sight.rtt_s == pytest.approx(2 * ONE_WAY_S)
    assert sight.uptime_s == pytest.approx(12.5 + 3 * ONE_WAY_S)


async def silent(stream: Stream) -> None:
    await asyncio.sleep(100)


async def hanging_up(stream: Stream) -> None:
    stream.close()


async def refusing(stream: Stream) -> None:
    def answer(channel: Channel, message: m.Message) -> None:
        channel.post(m.Error(getattr(message, "number", 0), 7, "too busy to say", 1.0))

    await serve_channel(stream, STATUS, answer)


async def parroting(stream: Stream) -> None:
    def answer(channel: Channel, message: m.Message) -> None:
        channel.post(message)

    await serve_channel(stream, STATUS, answer)


async def babbling(stream: Stream) -> None:
    await stream.write(b"\x00\x00\x00\x01\x00")
    await asyncio.sleep(100)


@pytest.mark.parametrize(
    ("handler", "reason"),
    [
        (None, "no such peer"),
        (silent, "no answer within 4 s"),
        (hanging_up, "the stream ended"),
        (refusing, "too busy to say"),
        (parroting, "it answered with AskStatus"),
        (babbling, "it broke the protocol"),
    ],
)
@in_virtual_time
async def test_a_node_that_gives_none_stays_in_the_list_with_the_reason(
    handler: StreamHandler | None, reason: str
) -> None:
    swarm = PlainSwarm()
    await swarm.announce(1, handler)
    await swarm.announce(2, account(), role=Role.VERIFIER)
    async with surveying(swarm) as surveyor:
        survey = await surveyor.survey()
    healthy, sick = survey.nodes
    assert reason in sick.reason
    assert sick == NodeSight(record=sick.record, reason=sick.reason)
    assert (healthy.reason, survey.problem) == ("", "")


@in_virtual_time
async def test_a_hundred_silent_nodes_are_asked_a_few_at_a_time() -> None:
    swarm = PlainSwarm()
    for number in range(1, 101):
        await swarm.announce(number, silent)
    async with surveying(swarm, ask_timeout_s=3.0, at_once=10) as surveyor:
        assert len((await surveyor.survey()).nodes) == 100
        assert asyncio.get_running_loop().time() == 100 / 10 * 3.0


@in_virtual_time
async def test_links_are_kept_between_surveys_to_nodes_that_are_announced() -> None:
    begun, ended = list[str](), list[str]()

    async def noting(stream: Stream) -> None:
        begun.append(stream.peer_id)
        await account()(stream)
        ended.append(stream.peer_id)

    swarm = PlainSwarm()
    record = await swarm.announce(1, noting)
    async with surveying(swarm) as surveyor:
        reasons = [(await surveyor.survey()).nodes[0].reason for _ in range(5)]
        assert (reasons, begun) == ([""] * 5, ["client"])
        swarm.network.transports[record.peer_id].vanish()
        await asyncio.sleep(1)
        reasons = [(await surveyor.survey()).nodes[0].reason]
        await swarm.announce(1, noting)
        reasons.append((await surveyor.survey()).nodes[0].reason)
        assert reasons == ["no such peer", ""] and len(begun) == 2
        swarm.directory, before = MemoryDirectory(), len(ended)
        assert (await surveyor.survey()).nodes == ()
        await asyncio.sleep(1)
        assert len(ended) == before + 1
