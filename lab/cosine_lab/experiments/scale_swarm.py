"""A swarm of any size for the scale study: every node live and announced in cells, every look-up counted."""

import asyncio
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from cosine_lab.simulation.discovery import NETWORK
from cosine_lab.simulation.records import TARGET
from cosine_lab.simulation.swarm import Member
from cosine_node.serving.announced_node import LOAD_CHECK_S
from cosine_node.serving.announcing import Announcer
from cosine_p2p.directory.dht import Cells, DhtDirectory, MemoryCells, Placement
from cosine_p2p.directory.directory import Directory
from cosine_p2p.directory.postings import RecordOpener
from cosine_p2p.strategy.base import Action, Committed, DrafterLost, Event, Strategy, StrategyKind
from cosine_protocol.identity import Identity
from cosine_protocol.records import NodeRecord, Role

CellCounts = Counter[str]
"""Cells, signed records in them and their bytes that one peer read from and wrote to the DHT."""


class CountedCells:
    """Implements `Cells` for one peer."""

    def __init__(self, cells: Cells, counts: CellCounts) -> None:
        self._cells = cells
        self._counts = counts

    async def read(self, cells: Sequence[str]) -> Mapping[str, Mapping[str, bytes]]:
        found = await self._cells.read(cells)
        read_bytes = [len(owner) + len(data) for records in found.values() for owner, data in records.items()]
        self._counts.update(cells_read=len(found), records_read=len(read_bytes), bytes_read=sum(read_bytes))
        return found

    async def write(
        self, cell: str, owner: str, data: bytes, expires_at_s: float, *, is_renewal: bool = False
    ) -> Placement:
        self._counts.update(records_written=1, bytes_written=len(owner) + len(data))
        return await self._cells.write(cell, owner, data, expires_at_s, is_renewal=is_renewal)


class CountedDht:
    """The cells of a whole network in memory: real records and checks, no routing between storing nodes.

    A record's signature is checked once for all readers, not once by each: they would all see the same.
    """

    def __init__(self) -> None:
        self.counts: dict[str, CellCounts] = {}
        self.described: dict[str, NodeRecord] = {}
        self._cells = MemoryCells(network=NETWORK, clock=now_s)
        self._opener = RecordOpener()

    def directory(self, identity: Identity) -> Directory:
        """The directory as one peer reads and writes it."""
        counts = self.counts[identity.peer_id] = Counter()
        cells = CountedCells(self._cells, counts)
        return DhtDirectory(cells, identity, network=NETWORK, clock=now_s, opener=self._opener)

    def describing(self, identity: Identity) -> Directory:
        """For the swarm: what it announces is only remembered, since an `Announcer` does that here."""
        return _DescribingDirectory(self.directory(identity), self.described)

    def total(self, peers: Sequence[Identity]) -> CellCounts:
        """The counts of some peers together."""
        return sum((self.counts[peer.peer_id] for peer in peers), Counter())

    def records_per_key(self) -> list[int]:
        """The number of live records in each cell that has any."""
        store, at_s = self._cells.store, now_s()
        sizes = [len(store.get(key, at_s)) for key in store.all_keys()]
        return sorted(size for size in sizes if size)


class _DescribingDirectory:
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
        self._announcers = [(member, self._announcer(member)) for member in members]

    async def run(self) -> None:
        """Announce everybody, then renew and look at loads until cancelled."""
        async with asyncio.TaskGroup() as group:
            for _, announcer in self._announcers:
                group.create_task(announcer.run())
            group.create_task(self._watch_loads())

    def _announcer(self, member: Member) -> Announcer:
        def describe() -> NodeRecord:
            return replace(self._dht.described[member.identity.peer_id], load_requests=member.service.requests)

        directory = self._dht.directory(member.identity)
        return Announcer(directory, member.identity, describe, [TARGET], clock=now_s)

    async def _watch_loads(self) -> None:
        loads = [0] * len(self._announcers)
        while True:
            await asyncio.sleep(LOAD_CHECK_S)
            for index, (member, announcer) in enumerate(self._announcers):
                if member.service.requests != loads[index]:
                    loads[index] = member.service.requests
                    announcer.changed()


@dataclass(slots=True)
class PeakLoads:
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
    """Processor time of a strategy's decisions, and how often one learnt that a drafter was lost or busy."""

    all_us: list[float] = field(default_factory=list)
    committed_us: list[float] = field(default_factory=list)
    drafters_lost: int = 0

    def timed(self, kind: StrategyKind) -> StrategyKind:
        """The same strategy with its decisions timed."""
        return replace(kind, make=lambda root: _TimedStrategy(kind.make(root), self))


class _TimedStrategy:
    def __init__(self, strategy: Strategy, times: DecisionTimes) -> None:
        self._strategy = strategy
        self._times = times

    def on(self, event: Event, now_s: float) -> list[Action]:
        began_s = time.thread_time()
        actions = self._strategy.on(event, now_s)
        took_us = 1e6 * (time.thread_time() - began_s)
        self._times.all_us.append(took_us)
        self._times.drafters_lost += isinstance(event, DrafterLost)
        if isinstance(event, Committed):
            self._times.committed_us.append(took_us)
        return actions


def now_s() -> float:
    """The time of the running loop."""
    return asyncio.get_running_loop().time()
