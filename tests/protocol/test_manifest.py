"""Manifests have a single encoding within bounds."""

from dataclasses import replace

import pytest

from cosine_protocol.errors import MalformedMessage
from cosine_protocol.fields import encode_body
from cosine_protocol.weights import (
    MAX_MANIFEST_BYTES,
    MAX_TENSORS,
    Manifest,
    ManifestPart,
    ManifestTensor,
    manifest_digest,
)

PART = ManifestPart("config.json", 2, bytes(32))
TENSOR = ManifestTensor("a", "BF16", (3, 4), 24, bytes(32))
MANIFEST = Manifest((PART,), (TENSOR, replace(TENSOR, name="b")))


def test_every_row_is_in_the_digest() -> None:
    others = [
        replace(MANIFEST, parts=()),
        replace(MANIFEST, parts=(replace(PART, sha256=bytes([1]) * 32),)),
        replace(MANIFEST, tensors=MANIFEST.tensors[:1]),
        *(
            replace(MANIFEST, tensors=(tensor,))
            for tensor in (
                replace(TENSOR, name="0"),
                replace(TENSOR, dtype="F32"),
                replace(TENSOR, shape=(12,)),
                replace(TENSOR, size_bytes=25),
                replace(TENSOR, root=b"1" * 32),
            )
        ),
    ]
    assert len({manifest_digest(one.encode()) for one in (MANIFEST, *others)}) == len(others) + 1


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xc0",
        MANIFEST.encode() + b"\xc0",
        MANIFEST.encode()[:-1],
        # A further field, which messages may have; a number in a longer form; names out of order, and twice.
        b"\x93" + MANIFEST.encode()[1:] + b"\xc0",
        MANIFEST.encode().replace(b"\x18\xc4", b"\xcc\x18\xc4", 1),
        encode_body(replace(MANIFEST, tensors=MANIFEST.tensors[::-1])),
        encode_body(replace(MANIFEST, tensors=(TENSOR, TENSOR))),
        encode_body(replace(MANIFEST, parts=(PART, PART))),
        # An array that claims more rows than a model may have.
        b"\x92\x90\xdd" + (MAX_TENSORS + 1).to_bytes(4) + b"\x90" * (MAX_TENSORS + 1),
        bytes(MAX_MANIFEST_BYTES + 1),
    ],
    ids=lambda data: data[:8].hex() or "empty",
)
def test_a_manifest_of_another_form_is_refused(data: bytes) -> None:
    with pytest.raises(MalformedMessage):
        Manifest.decode(data)
