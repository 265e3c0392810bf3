"""`/cosine/discover` and `/cosine/status`: records of peers, tokenizer files, and the status of a node."""

from dataclasses import dataclass
from typing import Annotated, Final

from cosine_protocol import fields as f
from cosine_protocol import stream
from cosine_protocol.records import MAX_RECORD_BYTES, NetworkCoordinate

DISCOVER: Final = "/cosine/discover/1.0.0"
STATUS: Final = "/cosine/status/1.0.0"

MAX_CELL_OWNERS: Final = 64  # Bounds one answer of a DHT node: a full cell of the largest records is 256 KiB.
MAX_FIND_KEYS: Final = 8
"""Bounds the cost of one DHT call. Eight full cells of the largest records are 2.6 MiB; libp2p's daemon carries
answers of up to 3.9 MiB (measured)."""


@dataclass(frozen=True, slots=True)
class AskRecords:
    number: f.Number
    key: f.Name


@dataclass(frozen=True, slots=True)
class Records:
    number: f.Number
    records: Annotated[tuple[bytes, ...], f.Items(f.Bytes(MAX_RECORD_BYTES), MAX_CELL_OWNERS)]


@dataclass(frozen=True, slots=True)
class AskFile:
    """Ask for a piece of a tokenizer file by tokenizer digest. `compresses` allows compression."""

    number: f.Number
    tokenizer_digest: f.ContentDigest
    name: f.Name
    offset: Annotated[int, f.Whole(f.MAX_FILE_BYTES)]
    compresses: Annotated[bool | None, f.Added(f.Flag())] = None


@dataclass(frozen=True, slots=True)
class FilePiece:
    """At most `MAX_CHUNK_BYTES` of a file, perhaps as zlib (RFC 1950). `total_bytes` is its size, 0 if missing."""

    number: f.Number
    total_bytes: Annotated[int, f.Whole(f.MAX_FILE_BYTES)]
    data: Annotated[bytes, f.Bytes(f.MAX_CHUNK_BYTES)]
    is_compressed: Annotated[bool | None, f.Added(f.Flag())] = None


@dataclass(frozen=True, slots=True)
class AskStatus:
    number: f.Number


@dataclass(frozen=True, slots=True)
class Status:
    """The status of a node. A drafter contributed `accepted` of `text_tokens`."""

    number: f.Number
    record: Annotated[bytes, f.Bytes(MAX_RECORD_BYTES)]
    requests: Annotated[int, f.Whole(1 << 20)]
    steps: f.Number
    uptime_s: Annotated[float, f.Real(1e12)]
    coordinate: Annotated[NetworkCoordinate | None, f.Added(f.Struct(NetworkCoordinate))] = None
    accepted: Annotated[int | None, f.Added(f.Whole(f.MAX_REQUEST_NUMBER))] = None
    text_tokens: Annotated[int | None, f.Added(f.Whole(f.MAX_REQUEST_NUMBER))] = None


DiscoverMessage = AskRecords | Records | AskFile | FilePiece
MESSAGES: Final = stream.MESSAGES | {48: AskRecords, 49: Records, 50: AskFile, 51: FilePiece}
StatusMessage = AskStatus | Status
STATUS_MESSAGES: Final = stream.MESSAGES | {64: AskStatus, 65: Status}
