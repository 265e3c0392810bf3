"""`/cosine/discover` and `/cosine/status`: records of peers, tokenizer files, and the status of a node."""

from typing import Annotated, Final

from cosine_protocol import fields as f
from cosine_protocol.records import MAX_RECORD_BYTES, NetworkCoordinate
from cosine_protocol.stream import StreamMessage

DISCOVER: Final = "/cosine/discover/1.0.0"
STATUS: Final = "/cosine/status/1.0.0"

MAX_CELL_OWNERS: Final = 64  # Bounds one answer of a DHT node: a full cell of the largest records is 256 KiB.
MAX_FIND_KEYS: Final = 8
"""Bounds the cost of one DHT call. Eight full cells of the largest records are 2.6 MiB; libp2p's daemon carries
answers of up to 3.9 MiB (measured)."""

RecordBytes = Annotated[bytes, f.Bytes(MAX_RECORD_BYTES)]


@f.message(48)
class AskRecords:
    number: f.Number
    key: f.Name


@f.message(49)
class Records:
    number: f.Number
    records: Annotated[tuple[RecordBytes, ...], f.AtMost(MAX_CELL_OWNERS)]


@f.message(50)
class AskFile:
    """Ask for a piece of a tokenizer file by tokenizer digest. `compresses` allows compression."""

    number: f.Number
    tokenizer_digest: f.ContentDigest
    name: f.Name
    offset: Annotated[int, f.Whole(f.MAX_FILE_BYTES)]
    compresses: bool | None = None


@f.message(51)
class FilePiece:
    """At most `MAX_CHUNK_BYTES` of a file, perhaps as zlib (RFC 1950). `total_bytes` is its size, 0 if missing."""

    number: f.Number
    total_bytes: Annotated[int, f.Whole(f.MAX_FILE_BYTES)]
    data: Annotated[bytes, f.Bytes(f.MAX_CHUNK_BYTES)]
    is_compressed: bool | None = None


@f.message(64)
class AskStatus:
    number: f.Number


@f.message(65)
class Status:
    """The status of a node. A drafter contributed `accepted` of `text_tokens`."""

    number: f.Number
    record: RecordBytes
    requests: Annotated[int, f.Whole(1 << 20)]
    steps: f.Number
    uptime_s: Annotated[float, f.Real(1e12)]
    coordinate: NetworkCoordinate | None = None
    accepted: f.Number | None = None
    text_tokens: f.Number | None = None


DiscoverMessage = StreamMessage | AskRecords | Records | AskFile | FilePiece
StatusMessage = StreamMessage | AskStatus | Status
