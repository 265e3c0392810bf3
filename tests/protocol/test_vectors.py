"""The golden vectors in `protocol/vectors` match this code in both directions."""

from pathlib import Path
from typing import Any

import msgpack
import pytest

from cosine_protocol.audit import AuditVerdict
from cosine_protocol.codec import TAGS, FrameDecoder, Message, decode, encode, encode_frame
from cosine_protocol.digests import encode_request, request_digest, roll_digest
from cosine_protocol.draft import Draft, Mandate
from cosine_protocol.errors import MalformedMessage
from cosine_protocol.fields import Added, decode_body, encode_body, wire_fields_of
from cosine_protocol.identity import Identity, sign, signed_bytes, verify
from cosine_protocol.membership import (
    Certificate,
    Revocations,
    check_certificate,
    read_certificate,
    read_revocations,
)
from cosine_protocol.noise import gumbel, noise_bits, position_key
from cosine_protocol.records import NodeRecord, open_record, seal_record
from cosine_protocol.request import Request
from cosine_protocol.verify import Transcript
from cosine_protocol.weights import Manifest, manifest_digest, pieces_root
from tests.protocol.samples import OTHER, OWNER
from tests.protocol.strategies import WIRE_CLASSES
from tests.protocol.vectors import FOLDER, as_json, of_json, read, schema, signed_schema

BODIES = {
    "fragment": Draft,
    "mandate": Mandate,
    "transcript": Transcript,
    "audit": AuditVerdict,
}
SIGNED = (Mandate, Transcript, Certificate, Revocations, NodeRecord)


def test_noise() -> None:
    for vector in read("noise"):
        seed, position, token = int(vector["seed"], 16), vector["position"], vector["token"]
        assert position_key(seed=seed, position=position) == int(vector["position_key"], 16)
        assert noise_bits(seed=seed, position=position, token=token) == int(vector["bits"], 16)
        # The logarithm of another C library may differ in its last bit before rounding.
        assert gumbel(seed=seed, position=position, token=token) == pytest.approx(vector["gumbel"], rel=1e-6)


def test_the_digests_of_requests() -> None:
    for vector in read("request_digests"):
        request = of_json(Request, vector["request"])
        assert as_json(request) == vector["request"]
        assert encode_request(request).hex() == vector["encoded"]
        assert request_digest(request).hex() == vector["d_0"]
        assert roll_digest(request_digest(request), vector["tokens"]).hex() == vector["digest_after_tokens"]


def test_a_frame_of_every_message() -> None:
    frames = read("frames")
    for vector in frames:
        cls, frame = TAGS[vector["tag"]], bytes.fromhex(vector["frame"])
        message: Message = of_json(cls, vector["fields"])
        assert encode_frame(encode(message)) == frame
        (body,) = FrameDecoder().feed(frame)
        assert decode(body) == message and as_json(message) == vector["fields"]
        assert cls.__name__ == vector["message"]
        # A later version may have more fields, and none has fewer.
        values = msgpack.unpackb(body)
        added = [kind for _, kind in wire_fields_of(cls) if isinstance(kind, Added)]
        absent = [None] * (1 + len(wire_fields_of(cls)) - len(values))
        assert decode(msgpack.packb([*values, *absent, "later", [7, None]])) == message
        with pytest.raises(MalformedMessage, match="needs"):
            decode(msgpack.packb([*values, *absent][: -len(added) - 1]))
    assert {vector["tag"] for vector in frames} == set(TAGS)


def test_the_bounds_of_every_field() -> None:
    written = read("schema")
    assert {cls.__name__: schema(cls) for cls in WIRE_CLASSES}.items() <= written.items()
    for cls in SIGNED:
        assert written[f"Signed{cls.__name__.removeprefix('Node')}"] == signed_schema(cls)
    assert len(written) == len(WIRE_CLASSES) + len(SIGNED)


def test_an_identity() -> None:
    vector = read("identity")
    identity = Identity.from_seed(bytes.fromhex(vector["seed"]))
    assert (identity.to_file_bytes().hex(), identity.peer_id) == (vector["key_file"], vector["peer_id"])


@pytest.mark.parametrize("name", BODIES)
def test_a_signed_body(name: str) -> None:
    vector = read(name)
    said = {"kind": vector["kind"], "signer": vector["signer"]}
    digest, body = bytes.fromhex(vector["d_0"]), bytes.fromhex(vector["body"])
    signer = next(each for each in (OWNER, OTHER) if each.peer_id == vector["signer"])
    assert signer.sign(kind=vector["kind"], digest=digest, body=body).hex() == vector["signature"]
    verify(**said, digest=digest, body=body, signature=bytes.fromhex(vector["signature"]))
    assert f"cosine/{name}/1".encode() in signed_bytes(**said, digest=digest, body=body)
    decoded: Any = decode_body(BODIES[name], body)
    assert encode_body(decoded) == body
    if "fields" in vector:
        assert as_json(decoded) == vector["fields"]


@pytest.mark.parametrize("path", sorted(FOLDER.glob("record*.json")), ids=lambda path: path.stem)
def test_a_record(path: Path) -> None:
    vector = read(path.stem)
    sealed = bytes.fromhex(vector["sealed"])
    record = open_record(sealed, key=vector["key"], owner=vector["owner"], now_s=vector["now_s"])
    assert as_json(record) == vector["fields"]
    assert seal_record(record, OWNER, key=vector["key"]) == sealed


def test_a_certificate_and_a_list_of_revoked_ones() -> None:
    vector = read("certificate")
    swarm = Identity.from_seed(bytes.fromhex(vector["swarm_seed"]))
    certificate = read_certificate(bytes.fromhex(vector["certificate"]))
    now_s, member = vector["now_s"], vector["member"]
    check_certificate(certificate, swarm=swarm.peer_id, member=member, now_s=now_s, revoked={})
    assert as_json(certificate) == vector["fields"]
    assert encode_body(sign(swarm, certificate)).hex() == vector["certificate"]
    vector = read("revocations")
    revocations = read_revocations(bytes.fromhex(vector["revocations"]))
    assert as_json(revocations) == vector["fields"]
    assert encode_body(sign(swarm, revocations)).hex() == vector["revocations"]


def test_a_manifest_names_its_model() -> None:
    vector = read("manifest")
    encoded = bytes.fromhex(vector["encoded"])
    manifest = Manifest.decode(encoded)
    assert as_json(manifest) == vector["fields"] and manifest.encode() == encoded
    assert manifest_digest(encoded).hex() == vector["content_digest"]
    assert manifest.tensors[0].root == pieces_root([bytes.fromhex(digest) for digest in vector["pieces"]])
