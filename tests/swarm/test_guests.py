"""Nodes that rest by their operator's rules lose no request: they finish what they have and take nothing new."""

import asyncio
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, time, timedelta
from functools import partial

import pytest

from cosine_engine.models.unloading import ModelMemory, WaitForWork
from cosine_lab.emulation.links import LinkTable, Partition
from cosine_lab.emulation.memory_transport import MemoryNetwork
from cosine_lab.emulation.scripted_engine import ScriptedEngine
from cosine_lab.simulation.discovery import SimulatedDht
from cosine_lab.simulation.records import TARGET
from cosine_lab.simulation.swarm import SimulatedSwarm, numbered_identity
from cosine_node.serving.announcing import Announcer
from cosine_node.serving.guest import LOOK_S, Guest, GuestRules, Hours, Look
from cosine_p2p.transport.patience import end_all
from cosine_protocol.identity import Identity
from cosine_protocol.records import NodeRecord, Role
from cosine_protocol.request import Sampling
from tests.scenes import in_virtual_time
from tests.swarm.reference import draft_engine, in_a_swarm, plain_stream, prompt_of, slower, target_engine

TOKENS = 40
PROMPT = prompt_of(random.Random("guests"))
EXPECTED = plain_stream(PROMPT, Sampling(), tokens=TOKENS)


@in_a_swarm
async def test_a_resting_verifier_finishes_its_request_and_the_next_one_goes_elsewhere(
    swarm: SimulatedSwarm,
) -> None:
    first, second = await swarm.verifier(target_engine()), await swarm.verifier(target_engine())
    client = await swarm.client(max_new_tokens=TOKENS)
    running = asyncio.ensure_future(client.generate(PROMPT))
    await asyncio.sleep(0.2)
    served = next(node for node in (first, second) if node.service.requests)
    served.service.rest(True)
    done = await running
    assert [report.peer_id for report in done.swarm.verifiers] == [served.transport.peer_id]
    again = await client.generate(PROMPT)
    assert done.token_ids == again.token_ids == EXPECTED
    assert served.transport.peer_id not in [report.peer_id for report in again.swarm.verifiers]
    served.service.rest(False)
    (second if served is first else first).service.rest(True)
    assert (await client.generate(PROMPT)).token_ids == EXPECTED


@in_a_swarm
async def test_a_resting_drafter_leaves_its_request_and_drafts_again_afterwards(swarm: SimulatedSwarm) -> None:
    await swarm.verifier(target_engine())
    drafter = await swarm.drafter(draft_engine(0.9))
    client = await swarm.client(max_new_tokens=TOKENS)
    running = asyncio.ensure_future(client.generate(PROMPT))
    await asyncio.sleep(0.2)
    drafter.service.rest(True)
    assert not drafter.service.requests
    assert (await running).token_ids == (await client.generate(PROMPT)).token_ids == EXPECTED
    assert not drafter.service.requests
    drafter.service.rest(False)
    await asyncio.sleep(30.0)
    again = await client.generate(PROMPT)
    assert again.token_ids == EXPECTED and again.swarm.accepted


LOAD_S = 20.0
IDLE_S = 60.0


class Unloaded(ModelMemory):
    """A simulated model that is unloaded after `IDLE_S`, and whose first `failing` loads fail."""

    def __init__(self, make: Callable[[], ScriptedEngine], *, failing: int = 0, after_s: float = IDLE_S) -> None:
        self.told: list[str] = []
        self.loads = 0

        async def load() -> list[ScriptedEngine]:
            await asyncio.sleep(LOAD_S)
            self.loads += 1
            if self.loads <= failing:
                raise MemoryError("a game has it")
            return [make()]

        super().__init__(
            [make()],
            load,
            model="model",
            load_s=LOAD_S,
            after_s=after_s,
            emit=lambda event, fields: self.told.append(event),
        )

    def waiting(self, swarm: SimulatedSwarm, place: int) -> WaitForWork:
        """Wait for work at the member of the swarm with that place."""
        return lambda work: self.wait(work, idle=asyncio.Event.wait, progress=swarm.members[place].service.progress)


@in_a_swarm
async def test_a_request_waits_for_the_only_verifiers_model_and_its_text_is_the_same(swarm: SimulatedSwarm) -> None:
    memory = Unloaded(target_engine)
    await swarm.verifier(memory.engines[0], wait_for_work=memory.waiting(swarm, 0))
    client = await swarm.client(max_new_tokens=TOKENS)
    assert (await client.generate(PROMPT)).token_ids == EXPECTED
    for unloads in range(1, 3):
        assert memory.until_loaded_s == 0.0
        await asyncio.sleep(2 * IDLE_S)
        assert memory.until_loaded_s == pytest.approx(LOAD_S) and memory.told == ["unloaded"] * unloads
        began_s = asyncio.get_running_loop().time()
        both = await asyncio.gather(client.generate(PROMPT), client.generate(PROMPT))
        assert [done.token_ids for done in both] == [EXPECTED] * 2
        assert LOAD_S < asyncio.get_running_loop().time() - began_s < LOAD_S + 10.0
        assert {len(done.swarm.verifiers) for done in both} == {1} and memory.loads == unloads


@in_a_swarm
async def test_a_model_that_cannot_be_loaded_loses_no_request_and_the_next_one_tries_again(
    swarm: SimulatedSwarm,
) -> None:
    memory = Unloaded(target_engine, failing=1)
    await swarm.verifier(memory.engines[0], wait_for_work=memory.waiting(swarm, 0))
    await asyncio.sleep(2 * IDLE_S)
    client = await swarm.client(max_new_tokens=TOKENS, timeout_s=300.0, patience_s=60.0)
    assert (await client.generate(PROMPT)).token_ids == EXPECTED
    assert memory.loads == 2 and memory.until_loaded_s == 0.0


@in_a_swarm
async def test_an_unloaded_drafter_costs_drafts_alone_until_it_is_loaded(swarm: SimulatedSwarm) -> None:
    memory = Unloaded(partial(draft_engine, 0.9))
    await swarm.verifier(target_engine())
    await swarm.drafter(memory.engines[0], wait_for_work=memory.waiting(swarm, 1))
    await asyncio.sleep(2 * IDLE_S)
    client = await swarm.client(max_new_tokens=TOKENS)
    first = await client.generate(PROMPT)
    assert first.token_ids == EXPECTED and not first.swarm.accepted
    await asyncio.sleep(LOAD_S)
    again = await client.generate(PROMPT)
    assert again.token_ids == EXPECTED and again.swarm.accepted and memory.loads == 1


HOUR_S = 3600
RULES = GuestRules(hours=Hours(time(20), time(16)), only_idle=True, on_mains=True)
BUSY, BATTERY, ALONE, LID, GAME, QUIET = (
    range(round(first * HOUR_S), round(last * HOUR_S))
    for first, last in ((2, 3), (5, 5.5), (6.5, 6.9), (7, 7.1), (9, 10), (11, 13))
)
"""Seconds in which others compute, the plug is out, the neighbour rests, the lid is closed, others play, and nobody
asks."""
EVERY_S = 600.0
GUEST, NEIGHBOUR, READER = (numbered_identity(number) for number in (1001, 1002, 1003))
DAY = [
    ("00:00", "a pass takes 0 s"),
    ("02:00", "other programs use the processor"),
    ("03:01", "a pass takes 20 s"),
    ("05:00", "the machine is on battery"),
    ("05:30", "nobody renews its record"),
    ("05:30", "a pass takes 20 s"),
    ("06:30", "a pass takes 0 s"),
    ("07:03", "nobody renews its record"),
    ("07:06", "a pass takes 0 s"),
    ("09:00", "other programs use the card"),
    ("10:01", "a pass takes 20 s"),
    ("16:00", "its hours are 20:00-16:00"),
    ("20:00", "nobody renews its record"),
    ("20:00", "a pass takes 20 s"),
]
"""What others find of the guest; it is unloaded while others are faster, and loaded when the neighbour rests."""


class GuestDay:
    """A verifier that is a guest beside a slower one that always works. `told` is what others find of the guest."""

    def __init__(self, swarm: SimulatedSwarm, dht: SimulatedDht) -> None:
        self.memory, self.guest = Unloaded(target_engine, after_s=1800.0), Guest(RULES)
        self.told: list[tuple[str, str]] = []
        self._swarm, self._dht = swarm, dht
        self._clock = asyncio.get_running_loop().time
        self._reader = dht.directory(READER)

    async def found(self) -> dict[str, NodeRecord]:
        return {record.peer_id: record for record in await self._reader.find(Role.VERIFIER, TARGET)}

    async def start(self) -> list[asyncio.Future[None]]:
        waiting = self.memory.waiting(self._swarm, 0)
        await self._swarm.verifier(self.memory.engines[0], identity=GUEST, wait_for_work=waiting)
        await self._swarm.verifier(target_engine(), identity=NEIGHBOUR, curve=slower(3.0))
        plain = await self.found()
        neighbour = self._announcer(NEIGHBOUR, lambda: plain[NEIGHBOUR.peer_id])
        works = (neighbour.run(), self._renew(neighbour), self._live(plain[GUEST.peer_id]), self._watch())
        return [asyncio.ensure_future(work) for work in works]

    def _announcer(self, identity: Identity, describe: Callable[[], NodeRecord]) -> Announcer:
        def is_reachable() -> bool:
            return not self.guest.reason if identity is GUEST else int(self._clock()) not in ALONE

        directory = self._dht.directory(identity)
        return Announcer(directory, identity, describe, [TARGET], is_reachable=is_reachable, clock=self._clock)

    async def _renew(self, announcer: Announcer) -> None:
        while True:
            await asyncio.sleep(LOOK_S)
            if (is_away := int(self._clock()) in ALONE) == bool(announcer.is_stored):
                self._swarm.members[1].service.rest(is_away)
                await announcer.restarted()
            announcer.changed()

    async def _live(self, plain: NodeRecord) -> None:
        """What a running node does; while its lid is closed it does nothing."""

        def describe() -> NodeRecord:
            return replace(plain, pass_us=plain.pass_us + round(1e6 * self.memory.until_loaded_s))

        announcer = self._announcer(GUEST, describe)
        running = asyncio.ensure_future(announcer.run())
        while True:
            await asyncio.sleep(LOOK_S)
            if (now_s := int(self._clock())) in LID:
                running.cancel()
                continue
            running = asyncio.ensure_future(announcer.run()) if running.done() else running
            before = self.guest.reason
            self.guest.see(look_at(now_s))
            if self.guest.reason != before:
                self._swarm.members[0].service.rest(bool(self.guest.reason))
                await announcer.restarted()
            announcer.changed()

    async def _watch(self) -> None:
        while True:
            said = self.guest.reason or "nobody renews its record"
            if (seen := (await self.found()).get(GUEST.peer_id)) is not None:
                said = f"a pass takes {seen.pass_us / 1e6:.0f} s"
            if not self.told or self.told[-1][1] != said:
                self.told.append((f"{time_of(self._clock()):%H:%M}", said))
            await asyncio.sleep(2 * LOOK_S)


def time_of(seconds: float) -> datetime:
    return datetime.min + timedelta(seconds=seconds)


def look_at(now_s: int) -> Look:
    """The guest's machine at a second of the day."""
    return Look(
        now=time_of(now_s).time(),
        monotonic_s=float(now_s),
        others_share=0.9 * (now_s in BUSY),
        card_share=0.5 * (now_s in GAME),
        is_on_battery=now_s in BATTERY,
    )


@pytest.mark.thorough
@in_virtual_time
async def test_a_day_of_a_guest_loses_no_request() -> None:
    lid = Partition(start_s=LID.start, end_s=LID.stop, group=frozenset({GUEST.peer_id}))
    network = MemoryNetwork(routes=LinkTable(seed=1, partitions=(lid,)).route)
    dht, clock, served = SimulatedDht(), asyncio.get_running_loop().time, Counter[str]()
    async with SimulatedSwarm(network, directory_of=dht.directory) as swarm:
        day = GuestDay(swarm, dht)
        tasks = await day.start()
        while clock() < 24 * HOUR_S - 1:
            if int(clock()) not in QUIET:
                client = await swarm.client(max_new_tokens=TOKENS)
                done = await client.generate(PROMPT)
                await swarm.leave_clients()
                assert done.token_ids == EXPECTED
                served[done.swarm.verifiers[-1].peer_id] += 1
            await asyncio.sleep(EVERY_S - clock() % EVERY_S)
        await end_all(tasks)
    assert (day.told, served) == (DAY, {GUEST.peer_id: 28, NEIGHBOUR.peer_id: 104})
