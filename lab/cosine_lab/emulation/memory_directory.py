"""Directories in memory: one without checks, and one honest storing node with all checks."""

import time
from collections.abc import Callable, Mapping, Sequence

from cosine_p2p.dht.cells import Placement
from cosine_p2p.dht.postings import (
    PostingChecker,
    RecordOpener,
    RecordStore,
    StoredValue,
    dht_key,
    subkey_bytes,
)
from cosine_p2p.trust.membership import Membership
from cosine_protocol.errors import RemoteProtocolError
from cosine_protocol.fields import encode_body
from cosine_protocol.records import ALL_TARGETS, NodeRecord, Role


class MemoryDirectory:
    """A directory shared by all peers of one process, without checks."""

    def __init__(self) -> None:
        self._records: dict[tuple[str, str], dict[str, NodeRecord]] = {}

    async def announce(self, record: NodeRecord, names: Sequence[str]) -> None:
        for name in (*names, ALL_TARGETS):
            self._records.setdefault((record.role, name), {})[record.peer_id] = record

    async def find(self, role: Role, target: str, *, wanted: int | None = None) -> list[NodeRecord]:
        del wanted
        return list(self._records.get((role, target), {}).values())

    def recall(self, role: Role, target: str) -> list[NodeRecord] | None:
        return None


class MemoryCells:
    """The cells of one honest storing node, with the same checks as on the real network."""

    def __init__(
        self,
        *,
        network: str,
        clock: Callable[[], float] = time.time,
        membership: Membership | None = None,
    ) -> None:
        self.store = RecordStore()
        self._opener = RecordOpener()
        self._checker = PostingChecker(network, self._opener, membership)
        self._clock = clock

    async def read(self, cells: Sequence[str]) -> Mapping[str, Mapping[str, bytes]]:
        return {
            cell: {posting.owner: posting.data for posting in self.store.get(dht_key(cell), self._clock())}
            for cell in cells
        }

    async def write(
        self, cell: str, owner: str, data: bytes, expires_at_s: float, *, is_renewal: bool = False
    ) -> Placement:
        key, now_s = dht_key(cell), self._clock()
        try:
            posting = self._checker.check(
                key=key,
                subkey=subkey_bytes(owner),
                value=encode_body(StoredValue(cell, data)),
                expires_at_s=expires_at_s,
                now_s=now_s,
            )
        except RemoteProtocolError:
            return Placement(holders=0, asked=1)
        return Placement(holders=int(self.store.put(key, posting, now_s, source="")), asked=1)
