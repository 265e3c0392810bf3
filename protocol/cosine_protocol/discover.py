"""`/cosine/discover` and `/cosine/status`: records of peers, tokenizer files, and the status of a node."""

from dataclasses import dataclass
from typing import Annotated, Final

from cosine_protocol import stream
from cosine_protocol.fields import (
    MAX_CHUNK_BYTES,
    MAX_FILE_BYTES,
    MAX_REQUEST_NUMBER,
    Added,
    Bytes,
    ContentDigest,
    Flag,
    Items,
    Name,
    Number,
    Real,
    Struct,
    Whole,
)
from cosine_protocol.records import MAX_RECORD_BYTES, NetworkCoordinate

DISCOVER: Final = "/cosine/discover/1.0.0"
STATUS: Final = "/cosine/status/1.0.0"

MAX_CELL_OWNERS: Final = 64  # Bounds one answer of a DHT node: a full cell of the largest records is 256 KiB.
MAX_FIND_KEYS: Final = 8
"""Bounds the cost of one DHT call. Eight full cells of the largest records are 2.6 MiB; libp2p's daemon carries
answers of up to 3.9 MiB (measured)."""


@dataclass(frozen=True, slots=True)
class AskRecords:
    number: Number
    key: Name


@dataclass(frozen=True, slots=True)
class Records:
    number: Number
    records: Annotated[tuple[bytes, ...], Items(Bytes(MAX_RECORD_BYTES), MAX_CELL_OWNERS)]


@dataclass(frozen=True, slots=True)
class AskFile:
    """Ask for a piece of a tokenizer file by tokenizer digest. `compresses` allows compression."""

    number: Number
    tokenizer_digest: ContentDigest
    name: Name
    offset: Annotated[int, Whole(MAX_FILE_BYTES)]
    compresses: Annotated[bool | None, Added(Flag())] = None


@dataclass(frozen=True, slots=True)
class FilePiece:
    """At most `MAX_CHUNK_BYTES` of a file, perhaps as zlib (RFC 1950). `total_bytes` is its size, 0 if missing."""

    number: Number
    total_bytes: Annotated[int, Whole(MAX_FILE_BYTES)]
    data: Annotated[bytes, Bytes(MAX_CHUNK_BYTES)]
    is_compressed: Annotated[bool | None, Added(Flag())] = None


@dataclass(frozen=True, slots=True)
class AskStatus:
    number: Number


@dataclass(frozen=True, slots=True)
class Status:
    """The status of a node. A drafter contributed `accepted` of `text_tokens`."""

    number: Number
    record: Annotated[bytes, Bytes(MAX_RECORD_BYTES)]
    requests: Annotated[int, Whole(1 << 20)]
    steps: Number
    uptime_s: Annotated[float, Real(1e12)]
    coordinate: Annotated[NetworkCoordinate | None, Added(Struct(NetworkCoordinate))] = None
    accepted: Annotated[int | None, Added(Whole(MAX_REQUEST_NUMBER))] = None
    text_tokens: Annotated[int | None, Added(Whole(MAX_REQUEST_NUMBER))] = None


DiscoverMessage = AskRecords | Records | AskFile | FilePiece
MESSAGES: Final = stream.MESSAGES | {48: AskRecords, 49: Records, 50: AskFile, 51: FilePiece}
StatusMessage = AskStatus | Status
STATUS_MESSAGES: Final = stream.MESSAGES | {64: AskStatus, 65: Status}
