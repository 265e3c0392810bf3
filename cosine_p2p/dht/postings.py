"""Records in the DHT: checks, and a node's bounded store. Values name their cell, since keys are hashes."""

import math
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from hashlib import sha1, sha256
from typing import Annotated, Final

import msgpack

from cosine_p2p.dht.peer_clocks import PeerClocks
from cosine_p2p.storage.memory import Remembered
from cosine_p2p.trust.membership import Membership
from cosine_protocol.discover import MAX_CELL_OWNERS
from cosine_protocol.errors import MalformedMessage
from cosine_protocol.fields import MAX_PEER_ID_BYTES, MAX_RECORD_SKEW_S, Bytes, Text, decode_body, encode_body
from cosine_protocol.identity import public_key_of
from cosine_protocol.records import (
    ALL_TARGETS,
    MAX_RECORD_BYTES,
    MAX_RECORD_TTL_S,
    NodeRecord,
    cell_name,
    check_times,
    open_undated_record,
)

MAX_DEPTH: Final = 4  # Bounds the cells: 16^4 of them hold four million nodes of one role and target.
MAX_CELL_NAME_BYTES: Final = 1024  # Bounds memory: more than the longest names of a network and a target.
MAX_VALUE_BYTES: Final = MAX_RECORD_BYTES + MAX_CELL_NAME_BYTES + 16  # The longest cell name and record.
MAX_STORED_BYTES: Final = 16 << 20  # Bounds memory: 80 full cells of records of 1 KiB.
MAX_OWNER_CELLS: Final = 8  # A node has three names, and each record may remain in a cell that the node has left.
MAX_RANGE_OWNERS: Final = MAX_CELL_OWNERS // 2
"""No address range can fill a cell, which would make readers descend; a lab still has room for its machines."""
MAX_REMEMBERED: Final = 16_384  # Bounds memory: records whose signature is not checked again.
ENTRY_BYTES: Final = 2048  # The memory of a record beyond its own bytes, measured with tracemalloc and rounded up.
PURGE_EVERY_S: Final = 30.0  # The minimum interval between searches for lapsed records.


@dataclass(frozen=True, slots=True)
class StoredValue:
    """The value under a DHT key and subkey."""

    cell: Annotated[str, Text(MAX_CELL_NAME_BYTES)]
    data: Annotated[bytes, Bytes(MAX_RECORD_BYTES)]


@dataclass(frozen=True, slots=True)
class Posting:
    """A checked record: `value` is stored in the DHT and contains the signed record `data`."""

    owner: str
    value: bytes
    data: bytes
    record: NodeRecord
    expires_at_s: float


def dht_key(cell: str) -> bytes:
    """Return hivemind's hash of a key: the SHA-1 of its msgpack."""
    return sha1(msgpack.packb(cell), usedforsecurity=False).digest()


def subkey_bytes(owner: str) -> bytes:
    """Return hivemind's encoding of a subkey."""
    return bytes(msgpack.packb(owner))


@lru_cache(maxsize=MAX_REMEMBERED)
def hash_prefix(owner: str) -> str:
    """The `MAX_DEPTH` hex digits that name a peer's cells. Raises `BadSignature` for an invalid peer id."""
    return sha256(public_key_of(owner)).hexdigest()[:MAX_DEPTH]


class RecordOpener:
    """An `open_record` that checks each signature only once, and compares `clocks` with the owners'."""

    def __init__(self) -> None:
        self.clocks = PeerClocks()
        self._opened = Remembered[bytes, NodeRecord](MAX_REMEMBERED)

    def open(
        self,
        data: bytes,
        *,
        cell: str,
        owner: str,
        now_s: float,
        valid_at_s: float | None = None,
        note: Callable[[NodeRecord], None] | None = None,
    ) -> NodeRecord:
        """Raises as `open_record`. Checks times at `valid_at_s`, default: now. `note` also gets lapsed records."""
        known_as = sha256(msgpack.packb((cell, owner, data))).digest()
        record = self._opened.get(known_as)
        if record is None:
            record = open_undated_record(data, key=cell, owner=owner)
            self._opened.note(known_as, record)
        self.clocks.note(owner, issued_s=record.issued_at_s, oldest_s=record.lifetime_s, now_s=now_s)
        if note is not None:
            note(record)
        check_times(record, now_s=now_s if valid_at_s is None else valid_at_s)
        return record


def check_cell(cell: str, *, network: str, record: NodeRecord) -> None:
    """Raise `MalformedMessage` unless `record` belongs in `cell` of `network`."""
    prefix = cell.rpartition("/")[2]
    names = (record.target, record.target_digest.hex(), ALL_TARGETS)
    if len(prefix) > MAX_DEPTH or not hash_prefix(record.peer_id).startswith(prefix):
        raise MalformedMessage("the record's owner does not belong in this cell")
    if cell not in {cell_name(network=network, role=record.role, target=name, prefix=prefix) for name in names}:
        raise MalformedMessage("the record is not of this network, role and target")


class PostingChecker:
    """Checks the records of one network; in a private swarm only members' records pass."""

    def __init__(self, network: str, opener: RecordOpener, membership: Membership | None = None) -> None:
        self.network = network
        self._opener = opener
        self._membership = membership

    def check(
        self,
        *,
        key: bytes,
        subkey: bytes,
        value: bytes,
        expires_at_s: float,
        now_s: float,
        note: Callable[[NodeRecord], None] | None = None,
    ) -> Posting:
        """Check a value to store; it may have lapsed within the clock skew. Raises `RemoteProtocolError`."""
        if len(value) > MAX_VALUE_BYTES:
            raise MalformedMessage(f"a value of {len(value)} bytes is over the limit")
        stored = decode_body(StoredValue, value)
        owner = _owner_of(subkey)
        if encode_body(stored) != value or dht_key(stored.cell) != key:
            raise MalformedMessage("the value does not belong under this key")
        valid_at_s = min(now_s, expires_at_s)
        record = self._opener.open(
            stored.data, cell=stored.cell, owner=owner, now_s=now_s, valid_at_s=valid_at_s, note=note
        )
        if not now_s - MAX_RECORD_SKEW_S <= expires_at_s <= now_s + MAX_RECORD_TTL_S:
            raise MalformedMessage("the value is to be kept too long, or has lapsed")
        if expires_at_s > record.expires_at_s:
            raise MalformedMessage("the value is to be kept longer than its record")
        check_cell(stored.cell, network=self.network, record=record)
        if self._membership is not None:
            self._membership.check(record.certificate or b"", peer_id=owner)
        return Posting(owner, value, stored.data, record, expires_at_s)

    def open(self, data: bytes, *, cell: str, owner: str, now_s: float) -> NodeRecord:
        """Check a record that was read from a cell. Raises `RemoteProtocolError`."""
        record = self._opener.open(data, cell=cell, owner=owner, now_s=now_s)
        check_cell(cell, network=self.network, record=record)
        if self._membership is not None:
            self._membership.check(record.certificate or b"", peer_id=owner)
        return record


def _owner_of(subkey: bytes) -> str:
    if len(subkey) > MAX_PEER_ID_BYTES + 8:
        raise MalformedMessage("a subkey is too long to be a peer id")
    try:
        owner = msgpack.unpackb(subkey)
    except (ValueError, msgpack.UnpackException):
        raise MalformedMessage("a subkey is not msgpack") from None
    if type(owner) is not str or subkey_bytes(owner) != subkey:
        raise MalformedMessage("a value without its owner's subkey")
    return owner


@dataclass(slots=True)
class _Held:
    posting: Posting
    source: str
    forget_at_s: float  # Until then an older record of this owner could be replayed.

    @property
    def cost_bytes(self) -> int:
        return len(self.posting.value) + ENTRY_BYTES


class RecordStore:
    """The postings that a node stores for others: the newest of each owner, at most `MAX_CELL_OWNERS` in a cell.

    Each comes from a `source`, which is an address range or "". A full store keeps the older postings, except that
    the source with the most places loses its youngest to a source that has at least two fewer.
    """

    def __init__(self, *, max_bytes: int = MAX_STORED_BYTES) -> None:
        self._cells: dict[bytes, dict[str, _Held]] = {}
        # The cells and owners of each source, the oldest first, and the cells of each owner.
        self._sources: dict[str, dict[tuple[bytes, str], None]] = {}
        self._owned: dict[str, set[bytes]] = {}
        self._max_bytes = max_bytes
        self._bytes = 0
        self._purged_at_s = -math.inf

    def put(self, key: bytes, posting: Posting, now_s: float, *, source: str = "") -> bool:
        """Store a checked posting; False if it has lapsed, is not newer than the stored one, or has no room."""
        if posting.expires_at_s < now_s:
            return False
        held = self._cells.get(key, {}).get(posting.owner)
        if held is None:
            return self._add(key, posting, now_s, source)
        if posting.record.sequence > held.posting.record.sequence:
            self._bytes += len(posting.value) - len(held.posting.value)
            held.forget_at_s = max(held.forget_at_s, posting.expires_at_s)
            held.posting = posting
            return True
        return posting == held.posting

    def _add(self, key: bytes, posting: Posting, now_s: float, source: str) -> bool:
        # Also after the clock was set back.
        if not 0.0 <= now_s - self._purged_at_s < PURGE_EVERY_S:
            self._purged_at_s = now_s
            for place, cell in list(self._cells.items()):
                for owner in [owner for owner, held in cell.items() if held.forget_at_s < now_s]:
                    self._remove(place, owner)
        if len(self._owned.get(posting.owner, ())) >= MAX_OWNER_CELLS:
            return False
        added = _Held(posting, source, posting.expires_at_s)
        if not self._has_room_in_cell(key, source, now_s) or not self._has_room(added.cost_bytes, source):
            return False
        self._cells.setdefault(key, {})[posting.owner] = added
        self._sources.setdefault(source, {})[key, posting.owner] = None
        self._owned.setdefault(posting.owner, set()).add(key)
        self._bytes += added.cost_bytes
        return True

    def _has_room_in_cell(self, key: bytes, source: str, now_s: float) -> bool:
        """Make room for another posting of `source` in a cell; False if that is not allowed."""
        live = {
            owner: held for owner, held in self._cells.get(key, {}).items() if held.posting.expires_at_s >= now_s
        }
        places = Counter(held.source for held in live.values())
        if source and places[source] >= MAX_RANGE_OWNERS:
            return False
        if len(live) < MAX_CELL_OWNERS:
            return True
        largest, most = places.most_common(1)[0]
        if places[source] + 1 >= most:
            return False
        # The owners of a cell are in the order of their arrival.
        self._remove(key, next(owner for owner in reversed(live) if live[owner].source == largest))
        return True

    def _has_room(self, cost_bytes: int, source: str) -> bool:
        """Make room for `cost_bytes` more of `source`; False if that is not allowed."""
        while self._bytes + cost_bytes > self._max_bytes:
            largest = max(self._sources.values(), key=len, default={})
            if len(self._sources.get(source, ())) + 1 >= len(largest):
                return False
            self._remove(*next(reversed(largest)))
        return True

    def get(self, key: bytes, now_s: float) -> list[Posting]:
        """The live postings of a key, the oldest owner first."""
        return [held.posting for held in self._cells.get(key, {}).values() if held.posting.expires_at_s >= now_s]

    def _remove(self, key: bytes, owner: str) -> None:
        held = self._cells[key].pop(owner)
        self._bytes -= held.cost_bytes
        self._owned[owner].discard(key)
        del self._sources[held.source][key, owner]
        if not self._cells[key]:
            del self._cells[key]
        if not self._owned[owner]:
            del self._owned[owner]
        if not self._sources[held.source]:
            del self._sources[held.source]
