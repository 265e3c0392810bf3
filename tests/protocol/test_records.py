"""Checks of signed records, and their cells."""

import math
from dataclasses import fields, replace
from hashlib import sha256
from typing import Any

import msgpack
import pytest
from hypothesis import given

from cosine_protocol.errors import BadSignature, CosineError, LocalProtocolError, MalformedMessage
from cosine_protocol.fields import (
    DIGEST_BYTES,
    MAX_NAME_BYTES,
    MAX_RECORD_SKEW_S,
    SIGNATURE_BYTES,
    decode_body,
    encode_body,
    pack_fields,
)
from cosine_protocol.identity import Identity, Signed, unseal
from cosine_protocol.records import (
    MAX_COORDINATE_US,
    MAX_RECORD_BYTES,
    MAX_RECORD_TTL_S,
    NetworkCoordinate,
    NodeRecord,
    Role,
    cell_key,
    open_record,
    seal_record,
)
from tests.protocol.samples import (
    COORDINATE,
    GENERATION_DEFAULTS,
    LIFETIME_S,
    NOW_S,
    OTHER,
    OWNER,
    STAGE_OFFER,
    record_of,
)
from tests.protocol.strategies import COORDINATES

KEY = "cosine/test/verifier/someone/model/"


def _sealed(record: NodeRecord, signer: Identity = OWNER) -> bytes:
    return seal_record(record, signer, key=KEY)


def _open(data: bytes, **changes: Any) -> NodeRecord:
    where: dict[str, Any] = {"key": KEY, "owner": OWNER.peer_id, "now_s": NOW_S}
    return open_record(data, **(where | changes))


def _signed(body: bytes) -> Signed[NodeRecord]:
    binding = sha256(KEY.encode()).digest()[:DIGEST_BYTES]
    return Signed(body, OWNER.sign(kind="record", digest=binding, body=body))


def test_a_sealed_record_opens_as_it_was_from_a_minute_early_to_its_expiry() -> None:
    data = _sealed(record_of())
    for now_s in (NOW_S - MAX_RECORD_SKEW_S, NOW_S, NOW_S + LIFETIME_S):
        assert _open(data, now_s=now_s) == record_of()
    assert record_of().expires_at_s == NOW_S + LIFETIME_S
    signed = unseal(NodeRecord, data)
    assert decode_body(NodeRecord, signed.body) == record_of()


@pytest.mark.parametrize(
    ("data", "changes", "error", "sentence"),
    [
        (_sealed(record_of()), {"now_s": NOW_S - 61}, MalformedMessage, "issued in the future"),
        (_sealed(record_of()), {"now_s": NOW_S + LIFETIME_S + 1}, MalformedMessage, "has expired"),
        (_sealed(record_of(), OTHER), {}, BadSignature, "does not match"),
        (_sealed(record_of()), {"key": KEY + "a"}, BadSignature, "does not match"),
        (_sealed(record_of()), {"owner": OTHER.peer_id}, BadSignature, "does not match"),
        (_sealed(record_of(peer_id=OTHER.peer_id)), {}, BadSignature, "another peer"),
        (_sealed(record_of(schema=3)), {}, MalformedMessage, "schema 3"),
        (_sealed(record_of(role="king")), {}, MalformedMessage, "unknown role"),
        (_sealed(record_of()) + bytes(MAX_RECORD_BYTES), {}, MalformedMessage, "over the limit"),
    ],
)
def test_a_forged_or_late_record_is_refused(
    data: bytes, changes: dict[str, Any], error: type[Exception], sentence: str
) -> None:
    with pytest.raises(error, match=sentence):
        _open(data, **changes)


def test_a_record_its_readers_would_refuse_is_not_sealed() -> None:
    with pytest.raises(LocalProtocolError, match=r"from 0\.0 to 900\.0"):
        _sealed(record_of(lifetime_s=MAX_RECORD_TTL_S + 1))
    addresses = ("x" * MAX_NAME_BYTES,) * 14
    # An array of two, the header of the body, the signature with its own.
    largest = MAX_RECORD_BYTES - (1 + 3 + 2 + SIGNATURE_BYTES)
    records = [record_of(addresses=addresses, model="x" * padding) for padding in range(MAX_NAME_BYTES)]
    by_size = {len(encode_body(record)): record for record in records}
    data = _sealed(by_size[largest])
    assert len(data) == MAX_RECORD_BYTES and _open(data).model
    with pytest.raises(LocalProtocolError, match="over the limit"):
        _sealed(by_size[largest + 1])


def test_no_single_bit_of_a_record_may_change() -> None:
    data = _sealed(record_of())
    for index in range(len(data)):
        with pytest.raises(CosineError):
            _open(data[:index] + bytes([data[index] ^ 1]) + data[index + 1 :])


def test_fields_added_by_a_later_version_are_ignored_and_signed() -> None:
    body = encode_body(record_of())
    later = bytes([body[0], body[1], body[2] + 8]) + body[3:] + b"\xc0\xc0\xc0\xc0\xc0\xc0\xc0\x07"
    signed = _signed(later)
    assert _open(encode_body(signed)) == record_of()
    with pytest.raises(BadSignature):
        _open(encode_body(replace(signed, body=later[:-1] + b"\x08")))


@pytest.mark.parametrize(
    ("field", "absurd"),
    [
        ("generation_defaults", {"temperature": -1.0}),
        ("generation_defaults", {"temperature": math.nan}),
        ("generation_defaults", {"do_sample": 1}),
        ("coordinate", {"x_us": math.nan}),
        ("coordinate", {"z_us": MAX_COORDINATE_US + 1}),
    ],
    ids=str,
)
def test_a_record_with_absurd_defaults_or_coordinates_is_refused(field: str, absurd: dict[str, Any]) -> None:
    good: Any = {"generation_defaults": GENERATION_DEFAULTS, "coordinate": COORDINATE}[field]
    values = {each.name: getattr(good, each.name) for each in fields(good)} | absurd
    absent = [] if field == "generation_defaults" else [None, None]
    wire = [*pack_fields(record_of()), *absent, list(values.values())]
    with pytest.raises(MalformedMessage, match=field):
        _open(encode_body(_signed(msgpack.packb(wire, use_bin_type=True))))
    with pytest.raises(LocalProtocolError):
        _sealed(record_of(**{field: replace(good, **absurd)}))


@given(COORDINATES, COORDINATES, COORDINATES)
def test_distances_are_a_metric(one: NetworkCoordinate, other: NetworkCoordinate, third: NetworkCoordinate) -> None:
    assert 0.0 <= one.rtt_s(other) < 30.0
    assert one.rtt_s(other) == other.rtt_s(one)
    assert one.rtt_s(other) <= one.rtt_s(third) + third.rtt_s(other) + 1e-9


def _cell(owner: Identity, depth: int) -> str:
    return cell_key(network="test", role="verifier", target="someone/model", owner=owner.peer_id, depth=depth)


def test_the_first_cell_is_everybodys_and_deeper_ones_split_by_the_hash_of_the_public_key() -> None:
    assert _cell(OWNER, 0) == _cell(OTHER, 0) == KEY
    assert _cell(OWNER, 3)[: len(KEY) + 2] == _cell(OWNER, 2)
    assert len(_cell(OWNER, 3)) == len(KEY) + 3
    cells = {_cell(Identity.from_seed(number.to_bytes(32, "big")), 1) for number in range(100)}
    assert len(cells) == 16


def test_a_record_cannot_say_other_things_of_a_known_target() -> None:
    true = record_of()
    for change in (
        {"eos": (1,)},
        {"eos": ()},
        {"tokenizer_digest": bytes(32)},
        {"content_digest": bytes(32)},
        {"generation_defaults": GENERATION_DEFAULTS},
    ):
        with pytest.raises(MalformedMessage, match="contradicts its target digest"):
            _open(_sealed(replace(true, **change)))
        assert record_of(**change).target_digest != true.target_digest


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"role": Role.STAGE}, "and no other nodes"),
        ({"stage": STAGE_OFFER}, "and no other nodes"),
        ({"role": Role.STAGE, "stage": replace(STAGE_OFFER, end_layer=8)}, "8:8 are no layers"),
        ({"role": Role.STAGE, "stage": STAGE_OFFER, "target_digest": bytes(32)}, "its target digest"),
    ],
)
def test_a_stage_of_no_layers_or_of_another_target_is_refused(changes: dict[str, Any], sentence: str) -> None:
    with pytest.raises(MalformedMessage, match=sentence):
        _open(_sealed(record_of(**changes)))
