"""The directory in a DHT: records in cells that split when they are full (docs/design.md, "The wire")."""

import asyncio
import logging
import math
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Final, Protocol

from cosine_p2p.dht.cell_walk import CellWalk
from cosine_p2p.dht.postings import MAX_DEPTH, PostingChecker, RecordOpener
from cosine_p2p.trust.membership import Membership
from cosine_protocol.discover import MAX_CELL_OWNERS
from cosine_protocol.errors import ClockOff, LocalProtocolError, PeerLost, RemoteProtocolError
from cosine_protocol.identity import Identity
from cosine_protocol.records import ALL_TARGETS, NodeRecord, Role, cell_key, cell_name, seal_record

logger = logging.getLogger(__name__)

KEEP_CELL_S: Final = 60.0  # How long a writer stays in its cell before it searches for one nearer to the first.


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """The result of a write: `holders` of the nodes `asked`, without the writer, hold the record."""

    holders: int
    asked: int

    @property
    def needed(self) -> int:
        """The majority of the nodes asked, so that a few liars cannot decide."""
        return self.asked // 2 + 1 if self.asked else 0

    @property
    def is_enough(self) -> bool:
        return self.holders >= self.needed


@dataclass(frozen=True, slots=True, kw_only=True)
class SealedRecord:
    """A record in a cell, signed by its owner."""

    cell: str
    owner: str
    data: bytes


NoteAddresses = Callable[[str, Sequence[str]], object]
NoteFound = Callable[[Role, str, Sequence[SealedRecord]], object]


class Cells(Protocol):
    """The store of cells, such as `HivemindTransport`."""

    async def read(self, cells: Sequence[str]) -> Mapping[str, Mapping[str, bytes]]:
        """The signed records of each cell, by owner, the oldest owner first. Raises `PeerLost`."""
        ...

    async def write(
        self, cell: str, owner: str, data: bytes, expires_at_s: float, *, is_renewal: bool = False
    ) -> Placement:
        """Store a record. Raises `PeerLost` if no node answers, `LocalProtocolError` for an invalid record."""
        ...


@dataclass(frozen=True, slots=True)
class FindMemory:
    """The records that an earlier run has found, by role and target, and what takes those that this one finds."""

    recalled: Mapping[tuple[Role, str], list[NodeRecord]] = field(default_factory=dict)
    note_found: NoteFound = lambda role, target, found: None


class DhtDirectory:
    """Implements `Directory`; with a `membership` that of its private swarm.

    `note_addresses` gets the addresses of nodes. `dropped` counts refused records, `holders` the other nodes that
    held our record at the last announcement.
    """

    def __init__(
        self,
        cells: Cells,
        identity: Identity,
        *,
        network: str,
        clock: Callable[[], float] = time.time,
        opener: RecordOpener | None = None,
        membership: Membership | None = None,
        note_addresses: NoteAddresses = lambda peer_id, maddrs: None,
        memory: FindMemory | None = None,
    ) -> None:
        self.dropped = 0
        self._note_addresses = note_addresses
        self._memory = memory or FindMemory()
        self.holders = 0
        self._look_ups = 0
        # By name: the cell that contains our record, and the time since when it is used.
        self._kept: dict[str, tuple[str, float]] = {}
        self._cells = cells
        self._identity = identity
        self._network = network
        self._clock = clock
        self._opener = opener or RecordOpener()
        self._checker = PostingChecker(network, self._opener, membership)

    async def announce(self, record: NodeRecord, names: Sequence[str]) -> None:
        """Store `record` under each name, the target's or the hex of its digest, and under `ALL_TARGETS`.

        Raises `LocalProtocolError` for another name and `PeerLost` if too few other nodes hold the record, except
        under `ALL_TARGETS`, which earlier versions do not store.
        """
        self.holders = 0
        for name in names:
            if name not in (record.target, record.target_digest.hex()):
                raise LocalProtocolError(f"a record of {record.target} cannot be announced as {name}")

        async def announce_to_all() -> None:
            with suppress(PeerLost):
                await self._announce_as(record, ALL_TARGETS)

        # Concurrently, since a goodbye has little time.
        named = asyncio.gather(*(self._announce_as(record, name) for name in names))
        placements, _ = await asyncio.gather(named, announce_to_all())
        least = min(placements, key=lambda placement: placement.holders, default=Placement(holders=0, asked=0))
        self.holders = least.holders
        if not all(placement.is_enough for placement in placements):
            raise PeerLost(
                record.peer_id,
                f"{least.holders} of the {least.asked} nodes that should hold our record have it, "
                f"{least.needed} are needed",
            )

    async def find(self, role: Role, target: str, *, wanted: int | None = None) -> list[NodeRecord]:
        """Checked, live records of a role for a target name or digest in hex, the newest of each peer.

        With `wanted`, a sample of at least this size: nodes near an origin that no other peer can predict. Raises
        `PeerLost` if the DHT does not answer, and `ClockOff` if no node is found and this machine's clock is far
        from those of peers.
        """
        # The origin is derived from our key and the number of look-ups, so that a simulation can repeat it.
        self._look_ups += 1
        signed = self._identity.sign(kind="place", digest=b"", body=str(self._look_ups).encode())
        walk = CellWalk(sha256(signed).hexdigest()[:MAX_DEPTH], wanted)
        sealed: dict[tuple[str, int], SealedRecord] = {}
        while prefixes := walk.next_prefixes():
            names = {
                cell_name(network=self._network, role=role, target=target, prefix=prefix): prefix
                for prefix in prefixes
            }
            for cell, records in (await self._cells.read(list(names))).items():
                opened = self._opened(cell, records)
                walk.note(names[cell], opened)
                for owner, record in opened.items():
                    sealed[record.peer_id, record.sequence] = SealedRecord(
                        cell=cell, owner=owner, data=records[owner]
                    )
        found = walk.found()
        for record in found:
            self._note_addresses(record.peer_id, record.addresses)
        self._memory.note_found(role, target, [sealed[record.peer_id, record.sequence] for record in found])
        clocks, now_s = self._opener.clocks, self._clock()
        if not found and (problem := clocks.problem(now_s)):
            raise ClockOff(f"no node was found, and {problem}")
        if news := clocks.news(now_s):
            logger.warning("%s", news)
        return found

    def recall(self, role: Role, target: str) -> list[NodeRecord] | None:
        return self._memory.recalled.get((role, target))

    async def _announce_as(self, record: NodeRecord, name: str) -> Placement:
        """Write to the last cell; if `KEEP_CELL_S` has passed or it refuses, to the first cell with room."""
        now_s = self._clock()
        kept_in, since_s = self._kept.get(name, ("", -math.inf))
        if 0.0 <= now_s - since_s < KEEP_CELL_S:
            placement = await self._write(kept_in, record, is_renewal=True)
            if placement.is_enough:
                return placement
        for depth in range(MAX_DEPTH + 1):
            cell = cell_key(network=self._network, role=record.role, target=name, owner=record.peer_id, depth=depth)
            placement = await self._write(cell, record)
            if placement.is_enough:
                self._kept[name] = cell, now_s
                return placement
            owners = self._opened(cell, (await self._cells.read([cell]))[cell])
            if len(owners) < MAX_CELL_OWNERS:
                # Readers do not descend below a cell that is not full.
                break
        return placement

    async def _write(self, cell: str, record: NodeRecord, *, is_renewal: bool = False) -> Placement:
        data = seal_record(record, self._identity, key=cell)
        return await self._cells.write(cell, record.peer_id, data, record.expires_at_s, is_renewal=is_renewal)

    def _opened(self, cell: str, records: Mapping[str, bytes]) -> dict[str, NodeRecord]:
        opened = {}
        for owner, data in records.items():
            try:
                record = self._checker.open(data, cell=cell, owner=owner, now_s=self._clock())
            except RemoteProtocolError as error:
                self.dropped += 1
                logger.debug("a record of %s in %s was dropped: %s", owner, cell, error)
            else:
                opened[owner] = record
        return opened
