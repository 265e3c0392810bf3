"""The announcer renews records in time, announces changes soon but not too often, and says goodbye."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from cosine_lab.emulation.memory_directory import MemoryDirectory
from cosine_node.serving.announcing import STATUS_KEY, Announcer
from cosine_protocol.errors import PeerLost
from cosine_protocol.records import NetworkCoordinate, NodeRecord, Role, open_record
from tests.cosine_p2p.samples import TARGET, identity_of, record_of
from tests.scenes import as_test, in_virtual_time

IDENTITY = identity_of(1)
START_S = 1_000_000.0
NODE = record_of(IDENTITY, now_s=0.0)


class Scene(MemoryDirectory):
    """A directory that records announcements, each after `takes_s`, and fails while it `is_down`."""

    def __init__(self) -> None:
        super().__init__()
        self.records: list[NodeRecord] = []
        self.is_down = False
        self.takes_s = 0.0
        self.stood_still_s = 0.0
        self.node = NODE
        self.announcer = Announcer(
            self,
            IDENTITY,
            lambda: self.node,
            [TARGET, "digest"],
            clock=lambda: START_S + self.stood_still_s + asyncio.get_running_loop().time(),
        )

    async def announce(self, record: NodeRecord, names: Sequence[str]) -> None:
        if self.is_down:
            raise PeerLost("dht", "down")
        await asyncio.sleep(self.takes_s)
        self.records.append(record)
        await super().announce(record, names)

    def change(self, **fields: Any) -> None:
        self.node = replace(self.node, **fields)
        self.announcer.changed()

    @property
    def times_s(self) -> list[float]:
        return [record.issued_at_s - START_S for record in self.records]


@in_virtual_time
async def play(act: Callable[[Scene], Awaitable[None]]) -> None:
    """Run `act` while a node is announced."""
    scene = Scene()
    announcing = asyncio.ensure_future(scene.announcer.run())
    # The first announcement is over before anything happens.
    for _ in range(5):
        await asyncio.sleep(0)
    await act(scene)
    announcing.cancel()
    await asyncio.gather(announcing, return_exceptions=True)


announced = as_test(play, given=1)


@announced
async def test_a_record_is_renewed_every_third_of_its_lifetime_with_the_current_coordinate(scene: Scene) -> None:
    place = NetworkCoordinate(1, 2, 3, 4, 500)
    await asyncio.sleep(10)
    scene.change(coordinate=place)
    await asyncio.sleep(291)
    assert scene.times_s == [0, 100, 200, 300]
    assert [record.coordinate for record in scene.records[:2]] == [None, place]
    sequences = [record.sequence for record in scene.records]
    assert sequences == sorted(set(sequences))
    assert sequences[0] == START_S * 1000


@announced
async def test_changes_are_announced_soon_but_not_too_often(scene: Scene) -> None:
    for load in range(1, 21):
        scene.change(load_requests=load)
        await asyncio.sleep(1.001)
    for _ in range(50):
        scene.announcer.changed()
        await asyncio.sleep(1)
    assert scene.times_s == pytest.approx([0, 5, 10, 15, 20], abs=0.1)
    assert scene.records[-1].load_requests == 20


@pytest.mark.parametrize("at_s", [1, 50])
@pytest.mark.parametrize("stood_still_s", [310.0, -310.0])
@announced
async def test_a_record_that_has_lapsed_by_the_clock_is_renewed_at_the_next_look(
    scene: Scene, at_s: float, stood_still_s: float
) -> None:
    """As after a suspend, during which timers stop, or a correction of the clock."""
    await asyncio.sleep(at_s)
    scene.stood_still_s = stood_still_s
    for _ in range(10):
        scene.announcer.changed()
        await asyncio.sleep(1)
    assert scene.times_s == pytest.approx([0, max(5, at_s) + stood_still_s], abs=1.1)


@announced
async def test_a_node_that_moves_during_an_announcement_is_announced_at_its_new_address(scene: Scene) -> None:
    await asyncio.sleep(50)
    scene.takes_s = 20.0
    scene.change(addresses=("/ip4/192.0.2.8/tcp/1",))
    await asyncio.sleep(5)
    scene.takes_s = 0.0
    scene.change(addresses=("/ip4/192.0.2.9/tcp/1",))
    await scene.announcer.restarted()
    await asyncio.sleep(1)
    assert (scene.times_s, scene.records[-1].addresses) == ([0, 55], ("/ip4/192.0.2.9/tcp/1",))


@announced
async def test_a_failed_announcement_is_retried(scene: Scene, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    await asyncio.sleep(50)
    scene.is_down = True
    await asyncio.sleep(65)
    scene.is_down = False
    await asyncio.sleep(10)
    assert scene.times_s == [0, 116]
    assert scene.announcer.is_stored
    # Several failures are logged once.
    assert [record.getMessage() for record in caplog.records] == [
        "no peer can find this node for now (dht: down); trying again every 2 s",
        "this node can be found again",
    ]


@announced
async def test_the_latest_record_is_signed_and_the_goodbye_lapses_at_once_and_comes_last(scene: Scene) -> None:
    assert scene.announcer.latest is not None
    record = open_record(scene.announcer.latest, key=STATUS_KEY, owner=IDENTITY.peer_id, now_s=START_S)
    assert [record] == scene.records == await scene.find(Role(record.role), "digest")
    await scene.announcer.stop()
    first, last = scene.records
    assert last.sequence > first.sequence
    assert (first.lifetime_s, last.lifetime_s) == (300.0, 1.0)
