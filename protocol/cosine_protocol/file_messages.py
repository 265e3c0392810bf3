"""The messages by which a client fetches the tokenizer files of a target from a node."""

from dataclasses import dataclass
from typing import Annotated

from cosine_protocol import limits
from cosine_protocol.fields import Bytes, ContentDigest, Name, Number, Whole


@dataclass(frozen=True, slots=True)
class AskFile:
    """Discover: a piece of a tokenizer file of the target with this tokenizer digest."""

    number: Number
    tokenizer_digest: ContentDigest
    name: Name
    offset: Annotated[int, Whole(limits.MAX_FILE_BYTES)]


@dataclass(frozen=True, slots=True)
class FilePiece:
    """At most `MAX_CHUNK_BYTES` of a file from the asked offset; `total_bytes` 0 means it is not there."""

    number: Number
    total_bytes: Annotated[int, Whole(limits.MAX_FILE_BYTES)]
    data: Annotated[bytes, Bytes(limits.MAX_CHUNK_BYTES)]
