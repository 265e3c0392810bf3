"""A receipt holds only as verifier and client signed it, for one request, and only between three peers."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cosine_protocol.codec import decode_body, encode_body
from cosine_protocol.digests import request_digest
from cosine_protocol.errors import BadSignature, MalformedMessage, RemoteProtocolError
from cosine_protocol.limits import MAX_EXPERTISE, MAX_RECEIPT_BYTES
from cosine_protocol.messages import Earning, Receipt, SignedReceipt
from cosine_protocol.statements import open_earning, read_receipt, sign_earning, sign_receipt
from tests.protocol.samples import NOW_S, OTHER, OWNER, SWARM, request_of

VERIFIER, CLIENT, DRAFTER = OWNER, OTHER, SWARM
D_0 = request_digest(request_of())
EARNING = Earning(bytes(32), CLIENT.peer_id, DRAFTER.peer_id, 7, 20, NOW_S)
SIGNED_EARNING = sign_earning(VERIFIER, EARNING, d_0=D_0)
RECEIPT = Receipt(VERIFIER.peer_id, ("code",), SIGNED_EARNING)
SIGNED = sign_receipt(CLIENT, RECEIPT, d_0=D_0)


def checked(signed: SignedReceipt) -> Earning:
    one = read_receipt(signed)
    one.check()
    return one.earning


def test_it_says_what_both_signed() -> None:
    assert checked(SIGNED) == EARNING == open_earning(SIGNED_EARNING, verifier=VERIFIER.peer_id, d_0=D_0)
    one = read_receipt(SIGNED)
    assert (one.verifier, one.client, one.receipt.expertise) == (VERIFIER.peer_id, CLIENT.peer_id, ("code",))


@given(st.sampled_from(["d_0", "body", "signature"]), st.integers(0, 1 << 16), st.integers(1, 255))
def test_not_a_byte_of_it_can_be_changed(part: str, place: int, change: int) -> None:
    old = getattr(SIGNED, part)
    index = place % len(old)
    new = old[:index] + bytes([old[index] ^ change]) + old[index + 1 :]
    with pytest.raises(RemoteProtocolError):
        checked(replace(SIGNED, **{part: new}))


def test_each_signature_is_that_of_its_peer() -> None:
    by_itself = sign_receipt(CLIENT, replace(RECEIPT, earning=sign_earning(CLIENT, EARNING, d_0=D_0)), d_0=D_0)
    for forged in (
        sign_receipt(DRAFTER, RECEIPT, d_0=D_0),
        by_itself,
        sign_receipt(CLIENT, RECEIPT, d_0=bytes(16)),
    ):
        with pytest.raises(BadSignature):
            checked(forged)
    with pytest.raises(BadSignature):
        open_earning(SIGNED_EARNING, verifier=CLIENT.peer_id, d_0=D_0)


@pytest.mark.parametrize(
    "earning",
    [
        replace(EARNING, drafter=VERIFIER.peer_id),
        replace(EARNING, drafter=CLIENT.peer_id),
        replace(EARNING, client=VERIFIER.peer_id),
        replace(EARNING, tokens=21),
    ],
)
def test_it_needs_three_peers_and_no_more_tokens_than_text(earning: Earning) -> None:
    receipt = replace(RECEIPT, earning=sign_earning(VERIFIER, earning, d_0=D_0))
    with pytest.raises(MalformedMessage):
        read_receipt(sign_receipt(CLIENT, receipt, d_0=D_0))


@given(st.binary(max_size=200))
def test_whatever_the_bytes_are_a_receipt_is_read_or_refused(body: bytes) -> None:
    for signed in (
        replace(SIGNED, body=body),
        replace(SIGNED, body=encode_body(replace(RECEIPT, earning=RECEIPT.earning)) + body[:1]),
    ):
        try:
            read_receipt(signed)
        except MalformedMessage:
            continue


def test_the_longest_fits() -> None:
    longest = replace(RECEIPT, expertise=("x" * 64,) * MAX_EXPERTISE)
    assert len(sign_receipt(CLIENT, longest, d_0=D_0).body) <= MAX_RECEIPT_BYTES
    assert decode_body(Receipt, encode_body(longest)) == longest
