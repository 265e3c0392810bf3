"""The messages in which weights travel: a question about a model of a content digest, and bytes."""

from dataclasses import dataclass
from enum import IntEnum
from typing import Annotated

from cosine_protocol import limits
from cosine_protocol.fields import Bytes, ContentDigest, Number, Whole


class WeightKind(IntEnum):
    """What is asked for: the manifest; a part of it, by its row; a bit for each tensor, 1 where it is held, the
    first one the highest of a byte; the digests of a tensor's pieces; a tensor's bytes.
    """

    MANIFEST = 0
    PART = 1
    HELD = 2
    DIGESTS = 3
    TENSOR = 4


@dataclass(frozen=True, slots=True)
class AskWeights:
    """The bytes of something of a model, from `offset` on. `index` is the row in the manifest, or 0."""

    number: Number
    content_digest: ContentDigest
    kind: Annotated[int, Whole(4)]
    index: Annotated[int, Whole(limits.MAX_TENSORS)]
    offset: Annotated[int, Whole(limits.MAX_TENSOR_BYTES)]


@dataclass(frozen=True, slots=True)
class WeightBytes:
    """The bytes from the offset on, at most `MAX_CHUNK_BYTES`, of so many in all."""

    number: Number
    total_bytes: Annotated[int, Whole(limits.MAX_TENSOR_BYTES)]
    data: Annotated[bytes, Bytes(limits.MAX_CHUNK_BYTES)]


WeightMessage = AskWeights | WeightBytes
