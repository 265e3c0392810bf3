"""The golden vectors in `protocol/vectors` hold for this code, as any other implementation would check them."""

import pytest

from cosine_protocol.codec import FrameDecoder, decode, decode_body, encode, encode_frame
from cosine_protocol.digests import encode_request, request_digest, roll_digest
from cosine_protocol.identity import Identity, signed_bytes, verify
from cosine_protocol.membership import check_certificate, read_certificate, read_revocations
from cosine_protocol.messages import AuditVerdict, Draft, Earning, Mandate, Receipt, Transcript
from cosine_protocol.noise import gumbel, noise_bits, position_key
from cosine_protocol.protocols import TAGS
from cosine_protocol.records import open_record, seal_record
from tests.protocol.strategies import WIRE_CLASSES
from tests.protocol.vectors import FOLDER, as_json, read, request_of_json, schema

SIGNED = {
    "mandate": Mandate,
    "transcript": Transcript,
    "audit": AuditVerdict,
    "earning": Earning,
    "receipt": Receipt,
}
RECORDS = (
    "record",
    "record_with_generation_defaults",
    "record_with_certificate",
    "record_with_coordinate",
    "record_of_stage",
    "record_of_learner",
)
MEMBERSHIP = ("certificate", "revocations")


def test_every_file_is_checked_here() -> None:
    others = {"noise", "request_digests", "frames", "schema", "identity", "fragment"}
    checked = others | {*SIGNED, *RECORDS, *MEMBERSHIP}
    assert {path.stem for path in FOLDER.iterdir()} == checked


def test_noise() -> None:
    for vector in read("noise"):
        seed, position, token = int(vector["seed"], 16), vector["position"], vector["token"]
        assert position_key(seed=seed, position=position) == int(vector["position_key"], 16)
        assert noise_bits(seed=seed, position=position, token=token) == int(vector["bits"], 16)
        # The logarithm of another C library may differ in its last bit before rounding.
        assert gumbel(seed=seed, position=position, token=token) == pytest.approx(vector["gumbel"], rel=1e-6)


def test_request_digests() -> None:
    for vector in read("request_digests"):
        request = request_of_json(vector["request"])
        assert encode_request(request).hex() == vector["encoded"]
        assert request_digest(request).hex() == vector["d_0"]
        assert roll_digest(request_digest(request), vector["tokens"]).hex() == vector["digest_after_tokens"]


def test_frames() -> None:
    for vector in read("frames"):
        (body,) = FrameDecoder().feed(bytes.fromhex(vector["frame"]))
        message = decode(body)
        assert (type(message), as_json(message)) == (TAGS[vector["tag"]], vector["fields"])
        assert type(message).__name__ == vector["message"]
        assert encode_frame(encode(message)).hex() == vector["frame"]


def test_there_is_a_frame_of_every_message() -> None:
    assert {vector["tag"] for vector in read("frames")} == set(TAGS)


def test_schema() -> None:
    written = read("schema")
    assert written.keys() == {cls.__name__ for cls in WIRE_CLASSES}
    for cls in WIRE_CLASSES:
        assert list(schema(cls).items()) == list(written[cls.__name__].items())


def test_identity() -> None:
    vector = read("identity")
    identity = Identity.from_seed(bytes.fromhex(vector["seed"]))
    assert identity.to_file_bytes().hex() == vector["key_file"]
    assert identity.peer_id == vector["peer_id"]


def test_signed_fragment() -> None:
    vector = read("fragment")
    digest, body = bytes.fromhex(vector["d_0"]), bytes.fromhex(vector["body"])
    signature = bytes.fromhex(vector["signature"])
    verify(kind=vector["kind"], signer=vector["signer"], digest=digest, body=body, signature=signature)
    identity = Identity.from_seed(bytes.fromhex(vector["private_seed"]))
    assert identity.sign(kind=vector["kind"], digest=digest, body=body) == signature
    assert len(decode_body(Draft, body).nodes) == 4
    assert b"cosine/fragment/1" in signed_bytes(
        kind=vector["kind"], signer=vector["signer"], digest=digest, body=body
    )


@pytest.mark.parametrize("name", SIGNED)
def test_signed_body(name: str) -> None:
    vector = read(name)
    digest, body = bytes.fromhex(vector["d_0"]), bytes.fromhex(vector["body"])
    signature = bytes.fromhex(vector["signature"])
    verify(kind=vector["kind"], signer=vector["signer"], digest=digest, body=body, signature=signature)
    assert as_json(decode_body(SIGNED[name], body)) == vector["fields"]


@pytest.mark.parametrize("name", RECORDS)
def test_record(name: str) -> None:
    vector = read(name)
    sealed = bytes.fromhex(vector["sealed"])
    record = open_record(sealed, key=vector["key"], owner=vector["owner"], now_s=vector["now_s"])
    assert as_json(record) == vector["fields"]
    identity = Identity.from_seed(bytes.fromhex(read("identity")["seed"]))
    assert seal_record(record, identity, key=vector["key"]) == sealed


def test_certificate() -> None:
    vector = read("certificate")
    certificate = read_certificate(bytes.fromhex(vector["certificate"]))
    swarm = Identity.from_seed(bytes.fromhex(vector["swarm_seed"])).peer_id
    check_certificate(certificate, swarm=swarm, member=vector["member"], now_s=vector["now_s"], revoked={})
    assert as_json(certificate) == vector["fields"]


def test_revocations() -> None:
    vector = read("revocations")
    assert as_json(read_revocations(bytes.fromhex(vector["revocations"]))) == vector["fields"]
