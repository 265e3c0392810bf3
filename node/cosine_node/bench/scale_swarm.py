"""A swarm of any size for the scale study: every node live and announced in cells, every look-up counted."""

import asyncio
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from cosine_node.announcing import Announcer
from cosine_node.engine.base import Engine
from cosine_node.simulation.discovery import NETWORK
from cosine_node.simulation.scenario import Scenario
from cosine_node.simulation.swarm import TARGET, Member
from cosine_node.simulation.trace_engine import TraceDrafter, TraceTarget
from cosine_node.simulation.traces import TraceSet
from cosine_node.simulation.workload import TEST_SPLIT, Task
from cosine_p2p.dht import Cells, DhtDirectory, MemoryCells
from cosine_p2p.directory import Directory
from cosine_p2p.postings import RecordOpener
from cosine_p2p.strategies.base import Action, Committed, DrafterLost, Event, Strategy, StrategyKind
from cosine_protocol.identity import Identity
from cosine_protocol.records import NodeRecord, Role
from cosine_protocol.request import Sampling

POOL_TOKENS: Final = 8_192
"""Room in each engine: what sixteen short requests with their trees take."""
LOAD_CHECK_S: Final = 5.0
"""How often a node looks whether its load has changed since its record, as in `cosine_node.node`."""


class SmallWorkload:
    """Implements `Workload`: traces as in `TraceWorkload`, without their tails, in engines with little memory."""

    def __init__(self, scenario: Scenario, traces: TraceSet) -> None:
        chosen = traces.select(split=TEST_SPLIT, temperature=scenario.temperature, domains=scenario.domains)
        self._scenario = scenario
        self._chosen = [trace.shortened(scenario.max_new_tokens) for trace in chosen]
        self._traces = TraceSet(self._chosen)
        self.eos = traces.eos
        self.vocab_tokens = traces.vocab_tokens

    def target(self, index: int) -> Engine:
        del index
        return TraceTarget(self._traces, pool_tokens=POOL_TOKENS)

    def drafter(self, index: int) -> Engine:
        return TraceDrafter(self._traces, f"draft-{self._scenario.domain(index)}", pool_tokens=POOL_TOKENS)

    def task(self, number: int) -> Task:
        trace = self._chosen[number % len(self._chosen)]
        return Task(
            domain=trace.domain,
            prompt=trace.prompt(),
            sampling=Sampling(temperature=trace.temperature, seed=trace.seed),
            max_new_tokens=len(trace.stream),
            stream=trace.stream,
        )


@dataclass(slots=True)
class CellUse:
    """What one peer read from and wrote to the DHT: cells, the signed records in them, and their bytes."""

    cells_read: int = 0
    records_read: int = 0
    bytes_read: int = 0
    records_written: int = 0
    bytes_written: int = 0


class CountedCells:
    """Implements `Cells` for one peer."""

    def __init__(self, cells: Cells, use: CellUse) -> None:
        self._cells = cells
        self._use = use

    async def read(self, cells: Sequence[str]) -> Mapping[str, Mapping[str, bytes]]:
        found = await self._cells.read(cells)
        self._use.cells_read += len(found)
        for records in found.values():
            self._use.records_read += len(records)
            self._use.bytes_read += sum(len(owner) + len(data) for owner, data in records.items())
        return found

    async def write(self, cell: str, owner: str, data: bytes, expires_at_s: float) -> bool:
        self._use.records_written += 1
        self._use.bytes_written += len(owner) + len(data)
        return await self._cells.write(cell, owner, data, expires_at_s)


class CountedDht:
    """The cells of a whole network in memory: real records and checks, no routing between storing nodes.

    A record's signature is checked once for all readers, not once by each: they would all see the same.
    """

    def __init__(self) -> None:
        self.uses: dict[str, CellUse] = {}
        self.described: dict[str, NodeRecord] = {}
        self._cells = MemoryCells(network=NETWORK, clock=now_s)
        self._opener = RecordOpener()

    def directory(self, identity: Identity) -> Directory:
        """The directory as one peer reads and writes it."""
        use = self.uses[identity.peer_id] = CellUse()
        cells = CountedCells(self._cells, use)
        return DhtDirectory(cells, identity, network=NETWORK, clock=now_s, opener=self._opener)

    def describing(self, identity: Identity) -> Directory:
        """For the swarm: what it announces is only remembered, since an `Announcer` does that here."""
        return _Describing(self.directory(identity), self.described)

    def records_per_key(self) -> list[int]:
        """How many records live in each cell that has any."""
        store, at_s = self._cells.store, now_s()
        sizes = [len(store.get(key, at_s)) for key in store.all_keys()]
        return sorted(size for size in sizes if size)


class _Describing:
    def __init__(self, directory: Directory, described: dict[str, NodeRecord]) -> None:
        self._directory = directory
        self._described = described

    async def announce(self, record: NodeRecord, names: Sequence[str]) -> None:
        del names
        self._described[record.peer_id] = record

    async def find(self, role: Role, target: str, *, wanted: int | None = None) -> list[NodeRecord]:
        return await self._directory.find(role, target, wanted=wanted)


class Announcers:
    """One `Announcer` for each member, as a real node has, with its present load in the record."""

    def __init__(self, dht: CountedDht, members: Sequence[Member]) -> None:
        self._dht = dht
        self._members = members
        self._announcers = [self._announcer(member) for member in members]

    async def run(self) -> None:
        """Announce everybody, then renew and look at loads until cancelled."""
        async with asyncio.TaskGroup() as group:
            for announcer in self._announcers:
                group.create_task(announcer.run())
            group.create_task(self._watch())

    def _announcer(self, member: Member) -> Announcer:
        def describe() -> NodeRecord:
            return replace(self._dht.described[member.identity.peer_id], load_requests=member.service.requests)

        directory = self._dht.directory(member.identity)
        return Announcer(directory, member.identity, describe, [TARGET], clock=now_s)

    async def _watch(self) -> None:
        loads = [0] * len(self._members)
        while True:
            await asyncio.sleep(LOAD_CHECK_S)
            for index, member in enumerate(self._members):
                if member.service.requests != loads[index]:
                    loads[index] = member.service.requests
                    self._announcers[index].changed()


@dataclass(slots=True)
class Peaks:
    """The most requests at a time: at one verifier, at one drafter, at all verifiers together."""

    verifier: int = 0
    drafter: int = 0
    together: int = 0

    async def watch(self, members: Sequence[Member], *, every_s: float) -> None:
        """Look again and again until cancelled."""
        verifiers = [member.service for member in members if member.role is Role.VERIFIER]
        drafters = [member.service for member in members if member.role is Role.DRAFTER]
        while True:
            loads = [service.requests for service in verifiers]
            self.verifier = max(self.verifier, *loads)
            self.together = max(self.together, sum(loads))
            self.drafter = max(self.drafter, *(service.requests for service in drafters))
            await asyncio.sleep(every_s)


@dataclass(slots=True)
class DecisionTimes:
    """Processor time of a strategy's decisions, and how often it heard that a drafter was lost or busy."""

    all_us: list[float] = field(default_factory=list)
    committed_us: list[float] = field(default_factory=list)
    drafters_lost: int = 0

    def timed(self, kind: StrategyKind) -> StrategyKind:
        """The same strategy with its decisions timed."""
        return replace(kind, make=lambda root: _Timed(kind.make(root), self))

    def note(self, event: Event, took_us: float) -> None:
        self.all_us.append(took_us)
        self.drafters_lost += isinstance(event, DrafterLost)
        if isinstance(event, Committed):
            self.committed_us.append(took_us)


class _Timed:
    def __init__(self, strategy: Strategy, times: DecisionTimes) -> None:
        self._strategy = strategy
        self._times = times

    def on(self, event: Event, now_s: float) -> list[Action]:
        began_s = time.thread_time()
        actions = self._strategy.on(event, now_s)
        self._times.note(event, 1e6 * (time.thread_time() - began_s))
        return actions


def share_of(values: Sequence[float], share: float) -> float:
    """The value that this share of `values` does not exceed; 0 if there are none."""
    ranked = sorted(values)
    return ranked[min(len(ranked) - 1, int(share * len(ranked)))] if ranked else 0.0


def now_s() -> float:
    """The time of the running loop."""
    return asyncio.get_running_loop().time()


def prefixed(prefix: str, use: CellUse, *, per: int) -> Iterator[tuple[str, float]]:
    """The counts of a use as fields of a row, each divided by `per`."""
    for name in ("cells_read", "records_read", "bytes_read", "records_written", "bytes_written"):
        yield f"{prefix}_{name}", getattr(use, name) / max(1, per)
