"""The live source in virtual time: joining, losing the swarm, coming back."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import pytest

from cosine_lab.emulation.virtual_loop import run_virtual
from cosine_lab.simulation.records import TARGET
from cosine_lab.simulation.swarm import SimulatedSwarm, numbered_identity
from cosine_p2p.client import Swarm
from cosine_p2p.client_memory import ClientMemory
from cosine_p2p.directory.directory import Directory
from cosine_p2p.text.tokenizer import TextTokenizer
from cosine_p2p.transport.base import Transport
from cosine_p2p.trust.denied_peers import BanFile
from cosine_p2p.trust.mandates import Mandates
from cosine_protocol.errors import PeerLost, UsageError
from cosine_protocol.records import GenerationDefaults, NodeRecord, Role
from cosine_train.learning.decision import LearningState
from cosine_train.learning.home import write_about
from cosine_train.learning.learner_report import reports_by_peer
from cosine_tui.sources.live import LiveSource, retry_pause_s
from cosine_tui.state.prompt_line import Options
from cosine_tui.state.snapshot import ConnectionState, EventKind, RequestState, Snapshot
from tests.swarm.reference import draft_engine, target_engine

NODES_NOTICE_S = 1.0
"""By then nodes have ended what they did for a client that is gone."""


@dataclass(slots=True)
class Weather:
    """What the network lets happen; every way in and every look passes here."""

    is_up: bool = True
    joins: int = 0
    closed: int = 0

    def check(self) -> None:
        if not self.is_up:
            raise PeerLost("bootstrap", "no initial peer answers")


@dataclass(slots=True)
class WeatheredDirectory:
    inner: Directory
    weather: Weather

    async def announce(self, record: NodeRecord, names: Sequence[str]) -> None:
        await self.inner.announce(record, names)

    async def find(self, role: Role, target: str, *, wanted: int | None = None) -> list[NodeRecord]:
        self.weather.check()
        return await self.inner.find(role, target, wanted=wanted)

    def recall(self, role: Role, target: str) -> list[NodeRecord] | None:
        return self.inner.recall(role, target)


@dataclass(slots=True)
class WeatheredPlace:
    inner: Swarm
    weather: Weather
    directory: Directory = field(init=False)

    def __post_init__(self) -> None:
        self.directory = WeatheredDirectory(self.inner.directory, self.weather)

    @property
    def transport(self) -> Transport:
        return self.inner.transport

    @property
    def mandates(self) -> Mandates | None:
        return self.inner.mandates

    async def text_codec(self, verifiers: Sequence[NodeRecord]) -> TextTokenizer:
        return await self.inner.text_codec(verifiers)

    def choose_digest(self, name: str, offered: Mapping[bytes, int]) -> bytes:
        return self.inner.choose_digest(name, offered)

    async def close(self) -> None:
        self.weather.closed += 1
        await self.inner.close()


Play = Callable[[LiveSource, Weather, list[Snapshot]], Awaitable[None]]


NOBODY_BANNED = BanFile(Path("/dev/null/bans.json"))


def played(
    play: Play,
    *,
    weather: Weather | None = None,
    published: GenerationDefaults | None = None,
    bans: BanFile = NOBODY_BANNED,
    learners: Path = Path("/dev/null/learned"),
) -> tuple[list[Snapshot], Weather]:
    """All snapshots of a live source on a simulated swarm while `play` goes on."""
    weather = weather or Weather()
    snapshots: list[Snapshot] = []

    async def run() -> None:
        async with SimulatedSwarm(generation_defaults=published) as swarm:
            await swarm.verifier(target_engine())
            await swarm.drafter(draft_engine(0.9))

            async def join() -> Swarm:
                weather.check()
                weather.joins += 1
                return WeatheredPlace(swarm.client_swarm(numbered_identity(100 + weather.joins)), weather)

            before = asyncio.all_tasks()
            source = LiveSource(
                join,
                network="test",
                target=TARGET,
                began_unix_s=0.0,
                bans=bans,
                memory=ClientMemory(),
                learners=partial(reports_by_peer, learners),
            )
            running = asyncio.ensure_future(source.run(snapshots.append))
            await play(source, weather, snapshots)
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
            await asyncio.sleep(NODES_NOTICE_S)
            assert asyncio.all_tasks() <= before

    run_virtual(run())
    return snapshots, weather


def states(snapshots: list[Snapshot]) -> list[ConnectionState]:
    """The states in the order they came, repetitions left out."""
    found: list[ConnectionState] = []
    for snapshot in snapshots:
        if not found or found[-1] is not snapshot.connection.state:
            found.append(snapshot.connection.state)
    return found


def test_it_joins_looks_generates_and_sees_with_the_next_look_who_is_banned_and_what_was_learned(
    tmp_path: Path,
) -> None:
    bans = BanFile(tmp_path / "bans.json", clock=lambda: 0.0)

    async def play(source: LiveSource, weather: Weather, snapshots: list[Snapshot]) -> None:
        await asyncio.sleep(4.0)
        source.ask("ABCDEFGH", Options(max_new_tokens=24))
        drafter = snapshots[-1].nodes[1]
        assert drafter.learner == () == snapshots[-1].bans
        write_about(tmp_path / "mine", peer_id=drafter.peer_id, model_name="m", target_name=TARGET)
        LearningState(rounds=7).write(tmp_path / "mine")
        bans.ban("late", until_s=200.0, why="spam")
        bans.ban("early", until_s=100.0, why="spam")
        await asyncio.sleep(4.0)

    snapshots, weather = played(play, bans=bans, learners=tmp_path)
    last = snapshots[-1]
    verifier, drafter = last.nodes
    assert dict(drafter.learner)["has learned"].startswith("7 rounds") and verifier.learner == ()
    assert [ban.peer_id for ban in last.bans] == ["early", "late"]
    assert states(snapshots) == [ConnectionState.JOINING, ConnectionState.LIVE]
    assert [node.role for node in last.nodes] == [Role.VERIFIER, Role.DRAFTER]
    assert (last.requests[0].state, last.requests[0].tokens) == (RequestState.FINISHED, 24)
    assert (weather.joins, weather.closed) == (1, 1)


def test_what_the_models_own_generation_config_gave_is_told_and_can_be_left_out() -> None:
    published = GenerationDefaults(repetition_penalty=1.2, max_new_tokens=9, not_honoured=("num_beams",))

    async def play(source: LiveSource, weather: Weather, snapshots: list[Snapshot]) -> None:
        await asyncio.sleep(4.0)
        source.ask("ABCDEFGH", Options())
        source.ask("ABCDEFGH", Options(generation_config="none", max_new_tokens=24))
        await asyncio.sleep(4.0)

    last = played(play, published=published)[0][-1]
    assert last.generation_defaults == published
    by_default, without = last.requests
    assert (by_default.tokens, without.tokens) == (9, 24)
    told = [(moment.text, moment.is_alert) for moment in by_default.timeline]
    assert told[1:3] == [
        ("the model's own generation config gave repetition_penalty 1.2, max_new_tokens 9", False),
        ("the model's own num_beams cannot be honoured", True),
    ]
    assert not any("generation config" in moment.text for moment in without.timeline)


def test_a_lost_swarm_is_said_kept_in_sight_and_joined_again() -> None:
    async def play(source: LiveSource, weather: Weather, snapshots: list[Snapshot]) -> None:
        await asyncio.sleep(4.0)
        weather.is_up = False
        await asyncio.sleep(20.0)
        lost = snapshots[-1]
        assert lost.connection.state is ConnectionState.LOST and "no initial peer answers" in lost.connection.reason
        assert lost.connection.retry_at_s is not None and len(lost.nodes) == 2
        weather.is_up = True
        await asyncio.sleep(40.0)

    snapshots, weather = played(play)
    assert states(snapshots) == [
        ConnectionState.JOINING,
        ConnectionState.LIVE,
        ConnectionState.LOST,
        ConnectionState.LIVE,
    ]
    kinds = [event.kind for event in snapshots[-1].events]
    assert kinds == [EventKind.JOINED, EventKind.SWARM_LOST, EventKind.SWARM_FOUND]
    assert (weather.joins, weather.closed) == (2, 2)


def test_a_network_that_is_not_there_at_first_is_waited_for() -> None:
    async def play(source: LiveSource, weather: Weather, snapshots: list[Snapshot]) -> None:
        await asyncio.sleep(5.0)
        source.ask("ABCDEFGH", Options())
        await asyncio.sleep(1.0)
        weather.is_up = True
        await asyncio.sleep(20.0)

    snapshots, _ = played(play, weather=Weather(is_up=False))
    assert states(snapshots) == [ConnectionState.JOINING, ConnectionState.LOST, ConnectionState.LIVE]
    (request,) = snapshots[-1].requests
    assert request.state is RequestState.FAILED and "the swarm is not there" in request.error


def test_one_look_in_vain_is_not_a_loss() -> None:
    async def play(source: LiveSource, weather: Weather, snapshots: list[Snapshot]) -> None:
        await asyncio.sleep(4.0)
        weather.is_up = False
        await asyncio.sleep(3.0)
        weather.is_up = True
        await asyncio.sleep(9.0)

    snapshots, weather = played(play)
    assert states(snapshots) == [ConnectionState.JOINING, ConnectionState.LIVE] and weather.joins == 1


def test_an_address_that_cannot_be_ends_the_source() -> None:
    async def join() -> Swarm:
        raise UsageError("That is no address.")

    source = LiveSource(
        join, network="test", target=TARGET, began_unix_s=0.0, bans=NOBODY_BANNED, memory=ClientMemory()
    )
    with pytest.raises(UsageError, match="That is no address"):
        run_virtual(source.run(lambda _: None))


def test_retries_come_ever_more_seldom() -> None:
    assert [retry_pause_s(attempt) for attempt in (0, 1, 2, 5, 1000)] == [1.0, 2.0, 4.0, 30.0, 30.0]
