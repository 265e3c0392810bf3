"""The messages for weights."""

from dataclasses import dataclass
from enum import IntEnum
from typing import Annotated

from cosine_protocol import limits
from cosine_protocol.fields import Bytes, ContentDigest, Number, Whole


class WeightKind(IntEnum):
    """The manifest; a part by its row; a bit for each tensor, 1 if held, highest bit first; the digests of a
    tensor's pieces; a tensor's bytes.
    """

    MANIFEST = 0
    PART = 1
    HELD = 2
    DIGESTS = 3
    TENSOR = 4


@dataclass(frozen=True, slots=True)
class AskWeights:
    """Ask for bytes of a model from `offset` on. `index` is the row in the manifest, or 0."""

    number: Number
    content_digest: ContentDigest
    kind: Annotated[int, Whole(4)]
    index: Annotated[int, Whole(limits.MAX_TENSORS)]
    offset: Annotated[int, Whole(limits.MAX_TENSOR_BYTES)]


@dataclass(frozen=True, slots=True)
class WeightBytes:
    """At most `MAX_CHUNK_BYTES` from the offset on, and the total size."""

    number: Number
    total_bytes: Annotated[int, Whole(limits.MAX_TENSOR_BYTES)]
    data: Annotated[bytes, Bytes(limits.MAX_CHUNK_BYTES)]


WeightMessage = AskWeights | WeightBytes
