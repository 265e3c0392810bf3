"""The announcer renews in time, tells changes soon but not too often, and says goodbye."""

import asyncio
import heapq
import logging
from collections.abc import Sequence
from dataclasses import replace

import pytest

from cosine_node.serving.announcing import STATUS_KEY, Announcer
from cosine_p2p.directory.directory import MemoryDirectory
from cosine_protocol.errors import PeerLost
from cosine_protocol.identity import Identity
from cosine_protocol.messages import NetworkCoordinate
from cosine_protocol.records import SCHEMA, NodeRecord, Role, open_record

IDENTITY = Identity.from_seed(bytes(32))
START_S = 1_000_000.0
NODE = NodeRecord(
    schema=SCHEMA,
    peer_id=IDENTITY.peer_id,
    role="drafter",
    target="t",
    target_digest=b"\x01" * 32,
    content_digest=b"\x03" * 32,
    tokenizer_digest=b"\x02" * 32,
    numerics="float32",
    model="tiny",
    expertise=(),
    capacity_requests=1,
    load_requests=0,
    pass_us=1,
    context_tokens=1,
    eos=(),
    addresses=(),
    software="test",
    emulated="",
    sequence=0,
    issued_at_s=0.0,
    lifetime_s=0.0,
)


class ManualClock:
    """Time that passes only in `advance`."""

    def __init__(self) -> None:
        self.now_s = START_S
        self._sleepers: list[tuple[float, int, asyncio.Future[None]]] = []

    def __call__(self) -> float:
        return self.now_s

    async def sleep(self, seconds: float) -> None:
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        heapq.heappush(self._sleepers, (self.now_s + seconds, id(future), future))
        await future

    async def advance(self, seconds: float) -> None:
        until_s = self.now_s + seconds
        await settle()
        while self._sleepers and self._sleepers[0][0] <= until_s:
            self.now_s, _, future = heapq.heappop(self._sleepers)
            if not future.done():
                future.set_result(None)
            await settle()
        self.now_s = until_s
        await settle()


async def settle() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


class Recording(MemoryDirectory):
    """Remembers every announcement; refuses while `is_down`."""

    def __init__(self) -> None:
        super().__init__()
        self.records: list[NodeRecord] = []
        self.is_down = False

    async def announce(self, record: NodeRecord, names: Sequence[str]) -> None:
        if self.is_down:
            raise PeerLost("dht", "down")
        self.records.append(record)
        await super().announce(record, names)


class Bench:
    """An announcer with everything around it in hand."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.directory = Recording()
        self.node = NODE
        self.announcer = Announcer(
            self.directory,
            IDENTITY,
            lambda: self.node,
            ["t", "digest"],
            lifetime_s=300.0,
            min_interval_s=5.0,
            clock=self.clock,
            sleep=self.clock.sleep,
        )

    @property
    def times_s(self) -> list[float]:
        return [record.issued_at_s - START_S for record in self.directory.records]


async def running(bench: Bench) -> "asyncio.Task[None]":
    task = asyncio.ensure_future(bench.announcer.run())
    await bench.clock.advance(0)
    return task


async def end(task: "asyncio.Task[None]") -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


def test_renewed_every_third_of_the_lifetime_with_rising_sequence() -> None:
    async def run() -> Bench:
        bench = Bench()
        task = await running(bench)
        await bench.clock.advance(301)
        await end(task)
        return bench

    bench = asyncio.run(run())
    assert bench.times_s == [0, 100, 200, 300]
    sequences = [record.sequence for record in bench.directory.records]
    assert sequences == sorted(set(sequences))
    assert sequences[0] == START_S * 1000


def test_a_node_that_finds_its_place_tells_it_with_the_next_renewal() -> None:
    place = NetworkCoordinate(1, 2, 3, 4, 500)

    async def run() -> Bench:
        bench = Bench()
        task = await running(bench)
        await bench.clock.advance(10)
        bench.node = replace(NODE, coordinate=place)
        bench.announcer.changed()
        await bench.clock.advance(91)
        await end(task)
        return bench

    bench = asyncio.run(run())
    assert bench.times_s == [0, 100]
    assert [record.coordinate for record in bench.directory.records] == [None, place]


def test_a_change_is_told_soon_and_not_too_often() -> None:
    async def run() -> Bench:
        bench = Bench()
        task = await running(bench)
        for load in range(1, 21):
            bench.node = replace(bench.node, load_requests=load)
            bench.announcer.changed()
            await bench.clock.advance(1)
        await end(task)
        return bench

    bench = asyncio.run(run())
    assert bench.times_s == [0, 5, 10, 15, 20]
    assert bench.directory.records[-1].load_requests == 20


def test_no_change_is_not_told() -> None:
    async def run() -> Bench:
        bench = Bench()
        task = await running(bench)
        for _ in range(50):
            bench.announcer.changed()
            await bench.clock.advance(1)
        await end(task)
        return bench

    assert asyncio.run(run()).times_s == [0]


def test_a_restarted_transport_is_told_again() -> None:
    async def run() -> Bench:
        bench = Bench()
        task = await running(bench)
        await bench.clock.advance(50)
        await bench.announcer.restarted()
        await bench.clock.advance(0)
        await end(task)
        return bench

    assert asyncio.run(run()).times_s == [0, 50]


def test_a_failed_announcement_is_tried_again(caplog: pytest.LogCaptureFixture) -> None:
    async def run() -> Bench:
        bench = Bench()
        bench.directory.is_down = True
        task = await running(bench)
        await bench.clock.advance(15)
        bench.directory.is_down = False
        await bench.clock.advance(15)
        await end(task)
        return bench

    caplog.set_level(logging.INFO)
    bench = asyncio.run(run())
    assert bench.times_s == [20]
    assert bench.announcer.is_stored
    # Two attempts failed, and there is one line about it.
    assert [record.getMessage() for record in caplog.records] == [
        "nobody can find this node for now (dht: down); trying again every 10 s",
        "this node can be found again",
    ]


def test_the_goodbye_lapses_at_once_and_comes_last() -> None:
    async def run() -> Bench:
        bench = Bench()
        task = await running(bench)
        await end(task)
        await bench.announcer.stop()
        return bench

    first, last = asyncio.run(run()).directory.records
    assert last.sequence > first.sequence
    assert last.lifetime_s == 1.0


def test_latest_is_the_signed_record() -> None:
    async def run() -> Bench:
        bench = Bench()
        assert bench.announcer.latest is None
        await bench.announcer.announce()
        return bench

    bench = asyncio.run(run())
    assert bench.announcer.latest is not None
    record = open_record(bench.announcer.latest, key=STATUS_KEY, owner=IDENTITY.peer_id, now_s=START_S)
    assert [record] == bench.directory.records
    assert asyncio.run(bench.directory.find(Role.DRAFTER, "digest")) == [record]
