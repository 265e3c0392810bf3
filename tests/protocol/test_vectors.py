"""The golden vectors in `protocol/vectors` hold for this code, bit by bit, both ways."""

from pathlib import Path

import pytest

from cosine_protocol import messages as m
from cosine_protocol.codec import FrameDecoder, decode, decode_body
from cosine_protocol.identity import Identity, signed_bytes, verify
from cosine_protocol.manifest import Manifest, manifest_digest, pieces_root
from cosine_protocol.membership import check_certificate, read_certificate
from cosine_protocol.noise import gumbel, noise_bits, position_key
from cosine_protocol.protocols import TAGS
from cosine_protocol.records import open_record
from tests.protocol import vectors, write_vectors
from tests.protocol.vectors import FOLDER, as_json, read

BODIES = {
    "fragment": m.Draft,
    "mandate": m.Mandate,
    "transcript": m.Transcript,
    "audit": m.AuditVerdict,
}


def test_this_code_writes_every_file_as_it_lies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vectors, "FOLDER", tmp_path)
    write_vectors.main()
    written = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    golden = {path.name: path.read_bytes() for path in FOLDER.iterdir()}
    assert written.keys() == golden.keys()
    # The logarithm of another C library may differ in its last bit before rounding.
    assert {name for name in golden if written[name] != golden[name]} <= {"noise.json"}


def test_noise() -> None:
    for vector in read("noise"):
        seed, position, token = int(vector["seed"], 16), vector["position"], vector["token"]
        assert position_key(seed=seed, position=position) == int(vector["position_key"], 16)
        assert noise_bits(seed=seed, position=position, token=token) == int(vector["bits"], 16)
        assert gumbel(seed=seed, position=position, token=token) == pytest.approx(vector["gumbel"], rel=1e-6)


def test_a_frame_of_every_message_is_read() -> None:
    frames = read("frames")
    for vector in frames:
        (body,) = FrameDecoder().feed(bytes.fromhex(vector["frame"]))
        message = decode(body)
        assert (type(message), as_json(message)) == (TAGS[vector["tag"]], vector["fields"])
        assert type(message).__name__ == vector["message"]
    assert {vector["tag"] for vector in frames} == set(TAGS)


@pytest.mark.parametrize("name", BODIES)
def test_a_signed_body_is_read(name: str) -> None:
    vector = read(name)
    said = {"kind": vector["kind"], "signer": vector["signer"]}
    digest, body = bytes.fromhex(vector["d_0"]), bytes.fromhex(vector["body"])
    verify(**said, digest=digest, body=body, signature=bytes.fromhex(vector["signature"]))
    assert f"cosine/{name}/1".encode() in signed_bytes(**said, digest=digest, body=body)
    decoded = as_json(decode_body(BODIES[name], body))
    assert decoded == vector["fields"] if "fields" in vector else len(decoded["nodes"]["tokens"]) == 4


@pytest.mark.parametrize("path", sorted(FOLDER.glob("record*.json")), ids=lambda path: path.stem)
def test_a_record_is_read(path: Path) -> None:
    vector = read(path.stem)
    sealed = bytes.fromhex(vector["sealed"])
    record = open_record(sealed, key=vector["key"], owner=vector["owner"], now_s=vector["now_s"])
    assert as_json(record) == vector["fields"]


def test_a_certificate_counts() -> None:
    vector = read("certificate")
    certificate = read_certificate(bytes.fromhex(vector["certificate"]))
    swarm = Identity.from_seed(bytes.fromhex(vector["swarm_seed"])).peer_id
    check_certificate(certificate, swarm=swarm, member=vector["member"], now_s=vector["now_s"], revoked={})


def test_a_manifest_names_its_model() -> None:
    vector = read("manifest")
    encoded = bytes.fromhex(vector["encoded"])
    manifest = Manifest.decode(encoded)
    assert as_json(manifest) == vector["fields"]
    assert manifest_digest(encoded).hex() == vector["content_digest"]
    assert manifest.tensors[0].root == pieces_root([bytes.fromhex(digest) for digest in vector["pieces"]])
