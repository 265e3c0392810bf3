"""The manifest of a model, whose digest is the model's content digest (docs/protocol.md, section 10). Pure."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Annotated, Final

from cosine_protocol import limits
from cosine_protocol.codec import decode_body, encode_body
from cosine_protocol.errors import LocalProtocolError, MalformedMessage
from cosine_protocol.fields import ContentDigest, Items, Name, Struct, Text, Whole

PIECE_BYTES: Final = limits.MAX_CHUNK_BYTES
"""One message each, so that every piece is checked as it comes. Their digests are one part in 8,192 of a tensor."""
_MARK: Final = b"cosine/manifest/1"
_PIECES_MARK: Final = b"cosine/pieces/1"


@dataclass(frozen=True, slots=True)
class ManifestPart:
    """A small file of the model, such as its configuration; of a GGUF file the metadata."""

    name: Name
    size_bytes: Annotated[int, Whole(limits.MAX_FILE_BYTES)]
    sha256: ContentDigest


@dataclass(frozen=True, slots=True)
class ManifestTensor:
    """A tensor as stored. `root` is the digest of the digests of its pieces."""

    name: Annotated[str, Text(limits.MAX_TENSOR_NAME_BYTES)]
    dtype: Annotated[str, Text(limits.MAX_DTYPE_BYTES)]
    shape: Annotated[tuple[int, ...], Items(Whole(limits.MAX_REQUEST_NUMBER), limits.MAX_DIMENSIONS)]
    size_bytes: Annotated[int, Whole(limits.MAX_TENSOR_BYTES)]
    root: ContentDigest

    @property
    def pieces(self) -> int:
        return -(-self.size_bytes // PIECE_BYTES)

    def piece_bytes(self, piece: int) -> int:
        return min(PIECE_BYTES, self.size_bytes - piece * PIECE_BYTES)


@dataclass(frozen=True, slots=True)
class Manifest:
    """All of a model, both lists in the order of their names."""

    parts: Annotated[tuple[ManifestPart, ...], Items(Struct(ManifestPart), limits.MAX_MANIFEST_PARTS)]
    tensors: Annotated[tuple[ManifestTensor, ...], Items(Struct(ManifestTensor), limits.MAX_TENSORS)]

    @classmethod
    def decode(cls, data: bytes) -> "Manifest":
        """Raises `MalformedMessage`, also for what `encode` would write otherwise."""
        if len(data) > limits.MAX_MANIFEST_BYTES:
            raise MalformedMessage(f"a manifest has at most {limits.MAX_MANIFEST_BYTES} bytes")
        found = decode_body(cls, data)
        if encode_body(found) != data:
            raise MalformedMessage("a manifest is encoded in one way only")
        for names in ([part.name for part in found.parts], [tensor.name for tensor in found.tensors]):
            if any(one >= other for one, other in pairwise(names)):
                raise MalformedMessage("a manifest has each name once, in order")
        return found

    def encode(self) -> bytes:
        """The bytes whose digest names the model. Raises `LocalProtocolError` for a model past the limits."""
        data = encode_body(self)
        if len(data) > limits.MAX_MANIFEST_BYTES:
            raise LocalProtocolError(f"a manifest of {len(data)} bytes is over {limits.MAX_MANIFEST_BYTES}")
        return data


def manifest_digest(data: bytes) -> bytes:
    """The content digest of the model with this encoded manifest."""
    return hashlib.sha256(_MARK + data).digest()


def pieces_root(digests: Sequence[bytes]) -> bytes:
    """The root of a tensor from the SHA-256 of each of its pieces, in order."""
    return hashlib.sha256(_PIECES_MARK + b"".join(digests)).digest()
