"""The live source in virtual time: joining, losing the swarm, coming back."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cosine_lab.emulation.virtual_loop import run_virtual
from cosine_lab.simulation.records import TARGET
from cosine_lab.simulation.swarm import SimulatedSwarm, numbered_identity
from cosine_p2p.client import Swarm
from cosine_p2p.client_memory import ClientMemory
from cosine_p2p.trust.denied_peers import BanFile
from cosine_protocol.errors import PeerLost
from cosine_protocol.records import Role
from cosine_tui.sources.live import LiveSource
from cosine_tui.state.prompt_line import Options
from cosine_tui.state.snapshot import ConnectionState, EventKind, RequestState, Snapshot
from tests.swarm.reference import draft_engine, target_engine

NODES_NOTICE_S = 1.0
"""Time in which nodes end their work for a client that is gone."""


@dataclass(slots=True)
class Weather:
    """The state of the network, which every join and look-up checks."""

    is_up: bool = True
    joins: int = 0
    closed: int = 0

    def check(self) -> None:
        if not self.is_up:
            raise PeerLost("bootstrap", "no initial peer answers")


class Changed:
    def __init__(self, inner: object, **changes: Any) -> None:
        self._inner = inner
        self._changes = changes

    def __getattr__(self, name: str) -> Any:
        return self._changes[name] if name in self._changes else getattr(self._inner, name)


def weathered(place: Swarm, weather: Weather) -> Any:
    """Return a place in a swarm whose look-ups depend on the weather, which counts its closing."""

    async def find(*which: Any, **options: Any) -> Any:
        weather.check()
        return await place.directory.find(*which, **options)

    async def close() -> None:
        weather.closed += 1
        await place.close()

    return Changed(place, directory=Changed(place.directory, find=find), close=close)


Play = Callable[[LiveSource, Weather, list[Snapshot]], Awaitable[None]]


NOBODY_BANNED = BanFile(Path("/dev/null/bans.json"))


def played(
    play: Play,
    *,
    weather: Weather | None = None,
    bans: BanFile = NOBODY_BANNED,
) -> tuple[list[Snapshot], Weather]:
    """Return all snapshots of a live source on a simulated swarm while `play` runs."""
    weather = weather or Weather()
    snapshots: list[Snapshot] = []

    async def run() -> None:
        async with SimulatedSwarm() as swarm:
            await swarm.verifier(target_engine())
            await swarm.drafter(draft_engine(0.9))

            async def join() -> Any:
                weather.check()
                weather.joins += 1
                return weathered(swarm.client_swarm(numbered_identity(100 + weather.joins)), weather)

            before = asyncio.all_tasks()
            source = LiveSource(
                join,
                network="test",
                target=TARGET,
                began_unix_s=0.0,
                bans=bans,
                memory=ClientMemory(),
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
    """Return the states in order, without repetitions."""
    found: list[ConnectionState] = []
    for snapshot in snapshots:
        if not found or found[-1] is not snapshot.connection.state:
            found.append(snapshot.connection.state)
    return found


def test_it_joins_generates_and_shows_bans(tmp_path: Path) -> None:
    bans = BanFile(tmp_path / "bans.json", clock=lambda: 0.0)

    async def play(source: LiveSource, weather: Weather, snapshots: list[Snapshot]) -> None:
        await asyncio.sleep(4.0)
        source.ask("ABCDEFGH", Options(max_new_tokens=24))
        source.ask("ABCDEFGH", Options(max_new_tokens=2000))
        assert snapshots[-1].bans == ()
        bans.ban("late", until_s=200.0, why="spam")
        bans.ban("early", until_s=100.0, why="spam")
        await asyncio.sleep(3.0)
        source.cancel(2)
        await asyncio.sleep(1.0)

    snapshots, weather = played(play, bans=bans)
    last = snapshots[-1]
    assert [ban.peer_id for ban in last.bans] == ["early", "late"]
    assert states(snapshots) == [ConnectionState.JOINING, ConnectionState.LIVE]
    assert [node.role for node in last.nodes] == [Role.VERIFIER, Role.DRAFTER]
    done, cancelled = last.requests
    assert (done.state, done.tokens, len(done.passes)) == (RequestState.FINISHED, 24, done.rounds)
    assert done.account is not None and done.timeline[-1].text == "finished"
    assert cancelled.state is RequestState.CANCELLED and 0 < cancelled.tokens < 2000
    assert (weather.joins, weather.closed) == (1, 1)


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
    assert request.state is RequestState.FAILED and "the swarm does not answer" in request.error


def test_one_look_in_vain_is_not_a_loss() -> None:
    async def play(source: LiveSource, weather: Weather, snapshots: list[Snapshot]) -> None:
        await asyncio.sleep(4.0)
        weather.is_up = False
        await asyncio.sleep(3.0)
        weather.is_up = True
        await asyncio.sleep(9.0)

    snapshots, weather = played(play)
    assert states(snapshots) == [ConnectionState.JOINING, ConnectionState.LIVE] and weather.joins == 1
