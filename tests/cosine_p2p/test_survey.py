"""The survey: every announced node in order, with its own account or the reason why there is none."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from cosine_lab.emulation.virtual_loop import run_virtual
from cosine_p2p.directory.directory import MemoryDirectory
from cosine_p2p.survey import NodeSight, Survey, Surveyor
from cosine_p2p.transport.base import Stream, StreamHandler
from cosine_p2p.transport.channel import Channel, serve_channel
from cosine_protocol import messages as m
from cosine_protocol.errors import PeerLost, UsageError
from cosine_protocol.protocols import STATUS
from cosine_protocol.records import NodeRecord, Role
from tests.cosine_p2p.plain_swarm import ONE_WAY_S, PlainSwarm, account
from tests.cosine_p2p.samples import TARGET
from tests.scenes import in_virtual_time

ASK_S = 4.0


def surveyed(
    arrange: Callable[[PlainSwarm], Awaitable[Any]], *, times: int = 1, target: str = TARGET, **options: Any
) -> Survey:
    """The last of some surveys of a swarm."""

    async def run() -> Survey:
        swarm = PlainSwarm()
        await arrange(swarm)
        surveyor = Surveyor(swarm, target=target, ask_timeout_s=ASK_S, **options)
        for _ in range(times - 1):
            await surveyor.survey()
        survey = await surveyor.survey()
        await surveyor.close()
        await swarm.close()
        return survey

    return run_virtual(run())


def test_verifiers_come_first_and_each_role_by_peer_id() -> None:
    async def arrange(swarm: PlainSwarm) -> None:
        for number in range(1, 9):
            await swarm.announce(number, account(), role=Role.VERIFIER if number % 2 else Role.DRAFTER)

    nodes = surveyed(arrange).nodes
    assert [sight.record.role for sight in nodes] == ["verifier"] * 4 + ["drafter"] * 4
    for part in (nodes[:4], nodes[4:]):
        assert [sight.record.peer_id for sight in part] == sorted(sight.record.peer_id for sight in part)


def test_a_node_gives_an_account_of_itself() -> None:
    async def arrange(swarm: PlainSwarm) -> None:
        await swarm.announce(1, account(requests=3, passes=70))
        await asyncio.sleep(12.5)

    (sight,) = surveyed(arrange).nodes
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
def test_a_node_that_gives_none_stays_in_the_list_with_the_reason(
    handler: StreamHandler | None, reason: str
) -> None:
    async def arrange(swarm: PlainSwarm) -> None:
        await swarm.announce(1, handler)
        await swarm.announce(2, account(), role=Role.VERIFIER)

    survey = surveyed(arrange)
    healthy, sick = survey.nodes
    assert reason in sick.reason
    assert sick == NodeSight(
        record=sick.record, rtt_s=None, requests=None, passes=None, uptime_s=None, reason=sick.reason
    )
    assert (healthy.reason, survey.problem) == ("", "")


def test_a_hundred_silent_nodes_are_asked_a_few_at_a_time() -> None:
    async def run() -> tuple[int, float]:
        swarm = PlainSwarm()
        for number in range(1, 101):
            await swarm.announce(number, silent)
        surveyor = Surveyor(swarm, target=TARGET, ask_timeout_s=3.0, at_once=10)
        survey = await surveyor.survey()
        took_s = asyncio.get_running_loop().time()
        await surveyor.close()
        await swarm.close()
        return len(survey.nodes), took_s

    nodes, took_s = run_virtual(run())
    assert (nodes, took_s) == (100, 100 / 10 * 3.0)


def test_links_are_kept_between_surveys() -> None:
    streams = 0

    async def arrange(swarm: PlainSwarm) -> None:
        async def count(stream: Stream) -> None:
            nonlocal streams
            streams += 1
            await account()(stream)

        await swarm.announce(1, count)

    assert surveyed(arrange, times=5).nodes[0].reason == ""
    assert streams == 1


def test_a_node_that_comes_back_is_seen_again() -> None:
    async def run() -> list[str]:
        swarm = PlainSwarm()
        record = await swarm.announce(1, account())
        surveyor = Surveyor(swarm, target=TARGET)
        reasons = [(await surveyor.survey()).nodes[0].reason]
        swarm.network.transports[record.peer_id].vanish()
        await asyncio.sleep(1)
        reasons.append((await surveyor.survey()).nodes[0].reason)
        await swarm.announce(1, account())
        reasons.append((await surveyor.survey()).nodes[0].reason)
        await surveyor.close()
        await swarm.close()
        return reasons

    assert run_virtual(run()) == ["", "no such peer", ""]


@in_virtual_time
async def test_no_link_is_kept_to_a_node_that_is_no_longer_announced() -> None:
    ended: list[str] = []

    async def noting(stream: Stream) -> None:
        await account()(stream)
        ended.append(stream.peer_id)

    swarm = PlainSwarm()
    await swarm.announce(1, noting)
    surveyor = Surveyor(swarm, target=TARGET)
    await surveyor.survey()
    swarm.directory = MemoryDirectory()
    assert (await surveyor.survey()).nodes == ()
    await asyncio.sleep(1)
    assert ended == ["client"]
    await surveyor.close()
    await swarm.close()


class BrokenDirectory(MemoryDirectory):
    """Its DHT answers for verifiers only."""

    async def find(self, role: Role, target: str, *, wanted: int | None = None) -> list[NodeRecord]:
        if role is Role.DRAFTER:
            raise PeerLost("us", "the DHT did not answer in time")
        return await super().find(role, target, wanted=wanted)


def test_a_directory_that_does_not_answer_is_a_problem_not_an_error() -> None:
    async def arrange(swarm: PlainSwarm) -> None:
        swarm.directory = BrokenDirectory()
        await swarm.announce(1, account(), role=Role.VERIFIER)

    survey = surveyed(arrange)
    assert survey.problem == "us: the DHT did not answer in time"
    assert len(survey.nodes) == 1


def test_a_digest_chooses_among_models_of_one_name() -> None:
    async def arrange(swarm: PlainSwarm) -> None:
        await swarm.announce(1, account())
        await swarm.announce(2, account(), target_digest=b"\x09" * 32)

    assert len(surveyed(arrange).nodes) == 2
    chosen = surveyed(arrange, target=f"{TARGET}@{'09' * 32}")
    assert [sight.record.target_digest for sight in chosen.nodes] == [b"\x09" * 32]


def test_a_target_that_cannot_be_read_is_a_usage_error() -> None:
    with pytest.raises(UsageError, match="digest"):
        Surveyor(PlainSwarm(), target="model@digest")
