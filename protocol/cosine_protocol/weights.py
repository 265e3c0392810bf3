"""`/cosine/weights`: peers fetch a model by its manifest, whose digest is the content digest. Pure.

See docs/protocol.md, section 10.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from itertools import pairwise
from typing import Annotated, Final

from cosine_protocol import fields as f
from cosine_protocol.errors import LocalProtocolError, MalformedMessage
from cosine_protocol.stream import StreamMessage

WEIGHTS: Final = "/cosine/weights/1.0.0"

MAX_TENSORS: Final = 131_072  # 256 experts in 58 layers with three matrices and scales each are 89,000.
MAX_TENSOR_NAME_BYTES: Final = 256  # Common names have some 60.
MAX_DTYPE_BYTES: Final = 16  # Data types in safetensors and GGUF files have at most 9.
MAX_DIMENSIONS: Final = 8  # Convolutions have four.
MAX_TENSOR_BYTES: Final = 1 << 36  # 64 GiB: more than the largest stack of experts.
MAX_MANIFEST_PARTS: Final = 64  # The configuration and all possible tokenizer files.
MAX_MANIFEST_BYTES: Final = 128 * MAX_TENSORS  # Rows with names of 60 and digests of 32 bytes.
PIECE_BYTES: Final = f.MAX_CHUNK_BYTES
"""A piece is one message and is checked on arrival. Digests take one part in 8,192 of a tensor."""
_MARK: Final = b"cosine/manifest/1"
_PIECES_MARK: Final = b"cosine/pieces/1"


@dataclass(frozen=True, slots=True)
class ManifestPart:
    """A small file of the model, such as its configuration; of a GGUF file the metadata."""

    name: f.Name
    size_bytes: Annotated[int, f.Whole(f.MAX_FILE_BYTES)]
    sha256: f.ContentDigest


@dataclass(frozen=True, slots=True)
class ManifestTensor:
    """A tensor as stored. `root` is the digest of the digests of its pieces."""

    name: Annotated[str, f.Text(MAX_TENSOR_NAME_BYTES)]
    dtype: Annotated[str, f.Text(MAX_DTYPE_BYTES)]
    shape: Annotated[tuple[f.Number, ...], f.AtMost(MAX_DIMENSIONS)]
    size_bytes: Annotated[int, f.Whole(MAX_TENSOR_BYTES)]
    root: f.ContentDigest

    @property
    def pieces(self) -> int:
        return -(-self.size_bytes // PIECE_BYTES)

    def piece_bytes(self, piece: int) -> int:
        return min(PIECE_BYTES, self.size_bytes - piece * PIECE_BYTES)


@dataclass(frozen=True, slots=True)
class Manifest:
    """All of a model, both lists in the order of their names."""

    parts: Annotated[tuple[ManifestPart, ...], f.AtMost(MAX_MANIFEST_PARTS)]
    tensors: Annotated[tuple[ManifestTensor, ...], f.AtMost(MAX_TENSORS)]

    @classmethod
    def decode(cls, data: bytes) -> "Manifest":
        """Raises `MalformedMessage`, also for what `encode` would write otherwise."""
        if len(data) > MAX_MANIFEST_BYTES:
            raise MalformedMessage(f"a manifest has at most {MAX_MANIFEST_BYTES} bytes")
        found = f.decode_body(cls, data)
        if f.encode_body(found) != data:
            raise MalformedMessage("a manifest is encoded in one way only")
        for names in ([part.name for part in found.parts], [tensor.name for tensor in found.tensors]):
            if any(one >= other for one, other in pairwise(names)):
                raise MalformedMessage("a manifest has each name once, in order")
        return found

    def encode(self) -> bytes:
        """The bytes whose digest names the model. Raises `LocalProtocolError` above the bounds."""
        data = f.encode_body(self)
        if len(data) > MAX_MANIFEST_BYTES:
            raise LocalProtocolError(f"a manifest of {len(data)} bytes is over {MAX_MANIFEST_BYTES}")
        return data


def manifest_digest(data: bytes) -> bytes:
    """The content digest of the model with this encoded manifest."""
    return hashlib.sha256(_MARK + data).digest()


def pieces_root(digests: Sequence[bytes]) -> bytes:
    """The root of a tensor from the SHA-256 of each of its pieces, in order."""
    return hashlib.sha256(_PIECES_MARK + b"".join(digests)).digest()


class WeightKind(IntEnum):
    """The manifest; a part by its row; a bit for each tensor, 1 if held, highest bit first; the digests of a
    tensor's pieces; a tensor's bytes.
    """

    MANIFEST = 0
    PART = 1
    HELD = 2
    DIGESTS = 3
    TENSOR = 4


@f.message(128)
class AskWeights:
    """Ask for bytes of a model from `offset` on. `index` is the row in the manifest, or 0."""

    number: f.Number
    content_digest: f.ContentDigest
    kind: Annotated[int, f.Whole(4)]
    index: Annotated[int, f.Whole(MAX_TENSORS)]
    offset: Annotated[int, f.Whole(MAX_TENSOR_BYTES)]


@f.message(129)
class WeightBytes:
    """At most `MAX_CHUNK_BYTES` from the offset on, and the total size."""

    number: f.Number
    total_bytes: Annotated[int, f.Whole(MAX_TENSOR_BYTES)]
    data: Annotated[bytes, f.Bytes(f.MAX_CHUNK_BYTES)]


WeightsMessage = StreamMessage | AskWeights | WeightBytes
