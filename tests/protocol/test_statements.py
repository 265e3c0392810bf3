"""Mandates, transcripts, verdicts and receipts hold as they were signed, for one request and nothing else."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cosine_protocol import messages as m
from cosine_protocol.codec import decode_body, encode_body
from cosine_protocol.digests import request_digest, roll_digest
from cosine_protocol.errors import BadSignature, ErrorCode, MalformedMessage, PeerError, RemoteProtocolError
from cosine_protocol.limits import (
    MAX_EXPERTISE,
    MAX_MANDATE_S,
    MAX_RECEIPT_BYTES,
    MAX_RECORD_SKEW_S,
    TRANSCRIPT_EVERY_TOKENS,
)
from cosine_protocol.statements import (
    check_length,
    check_live,
    is_transcript_due,
    open_claim,
    open_earning,
    open_mandate,
    open_transcript,
    open_verdict,
    read_receipt,
    sign_earning,
    sign_mandate,
    sign_receipt,
    sign_transcript,
    sign_verdict,
)
from tests.protocol.samples import LIFETIME_S, NOW_S, OTHER, OWNER, SWARM, request_of

CLIENT, VERIFIER, DRAFTER, AUDITOR = OTHER, OWNER, SWARM, OTHER
REQUEST = request_of()
D_0 = request_digest(REQUEST)

TERMS: dict[str, Any] = {
    "d_0": D_0,
    "delegate": VERIFIER.peer_id,
    "drafters": ("a", "b"),
    "most_tokens": 10,
    "issued_at_s": NOW_S,
    "lifetime_s": LIFETIME_S,
}
MANDATE = sign_mandate(CLIENT, **TERMS)


def opened_mandate(signed: m.SignedMandate = MANDATE, **changes: Any) -> m.Mandate:
    where: dict[str, Any] = {"client": CLIENT.peer_id, "d_0": D_0, "delegate": VERIFIER.peer_id, "now_s": NOW_S}
    return open_mandate(signed, **(where | changes))


def test_a_mandate_is_its_delegates_until_it_ends_and_good_for_so_many_tokens() -> None:
    mandate = m.Mandate(VERIFIER.peer_id, ("a", "b"), 10, NOW_S, LIFETIME_S)
    for now_s in (NOW_S - MAX_RECORD_SKEW_S, NOW_S, NOW_S + LIFETIME_S):
        assert opened_mandate(now_s=now_s) == mandate
    check_length(mandate, 10)
    with pytest.raises(PeerError, match="ends after 10 tokens"):
        check_length(mandate, 11)
    endless = opened_mandate(sign_mandate(CLIENT, **TERMS | {"lifetime_s": 1e9}))
    check_live(endless, now_s=NOW_S + MAX_MANDATE_S)
    with pytest.raises(PeerError):
        check_live(endless, now_s=NOW_S + MAX_MANDATE_S + 1)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"client": VERIFIER.peer_id}, "the signature of a mandate does not match"),
        ({"client": "nobody"}, "not a"),
        ({"d_0": bytes(16)}, "the signature of a mandate does not match"),
        ({"delegate": CLIENT.peer_id}, "for another peer"),
        ({"now_s": NOW_S + LIFETIME_S + 0.1}, "has ended"),
        ({"now_s": NOW_S - MAX_RECORD_SKEW_S - 1}, "lies in the future"),
        ({"signed": replace(MANDATE, body=MANDATE.body + b"\0")}, "does not match"),
        ({"signed": m.SignedMandate(b"x", CLIENT.sign(kind="mandate", digest=D_0, body=b"x"))}, "array|fields"),
    ],
)
def test_for_anybody_or_anything_else_a_mandate_is_worth_nothing(changes: dict[str, Any], reason: str) -> None:
    with pytest.raises(PeerError, match=reason) as refused:
        opened_mandate(**changes)
    assert refused.value.code == ErrorCode.BAD_MANDATE


def test_a_transcript_is_due_now_and_then_and_at_the_end() -> None:
    every = TRANSCRIPT_EVERY_TOKENS
    for before, after, is_due in (
        (0, 1, False),
        (0, every - 1, False),
        (every - 1, every, True),
        (every, every + 1, False),
        (every + 1, 5 * every, True),
    ):
        assert is_transcript_due(before=before, after=after, has_ended=False) is is_due
        assert is_transcript_due(before=before, after=after, has_ended=True)


TOKENS = (3, 5, 8, 13)
DIGEST = roll_digest(D_0, TOKENS)
TRANSCRIPT = m.Transcript(1, len(TOKENS), DIGEST)
SIGNED = sign_transcript(VERIFIER, TRANSCRIPT, d_0=D_0)
CLAIM = m.AskAudit(7, REQUEST, TOKENS, VERIFIER.peer_id, SIGNED)
FINDING = m.AuditFinding(2, 9, 4.0)
VERDICT = m.AuditVerdict(VERIFIER.peer_id, 1, len(TOKENS), DIGEST, 1, 1, 1, (FINDING,))


def test_a_transcript_holds_for_its_request_and_tokens_and_a_verdict_for_its_claim() -> None:
    assert open_transcript(SIGNED, author=VERIFIER.peer_id, d_0=D_0) == open_claim(CLAIM) == TRANSCRIPT
    answer = sign_verdict(AUDITOR, VERDICT, number=7, d_0=D_0)
    assert open_verdict(answer, auditor=AUDITOR.peer_id, claim=CLAIM) == VERDICT
    other = replace(CLAIM, request=request_of(nonce=bytes(16)))
    for auditor, claim in ((VERIFIER, CLAIM), (AUDITOR, other)):
        with pytest.raises(BadSignature):
            open_verdict(answer, auditor=auditor.peer_id, claim=claim)


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"author": AUDITOR.peer_id}, BadSignature),
        ({"author": "nobody"}, BadSignature),
        ({"request": request_of(nonce=bytes(16))}, BadSignature),
        ({"transcript": replace(SIGNED, body=SIGNED.body + b"\0")}, BadSignature),
        ({"transcript": sign_transcript(AUDITOR, TRANSCRIPT, d_0=D_0)}, BadSignature),
        ({"tokens": TOKENS[:-1]}, MalformedMessage),
        ({"tokens": (*TOKENS, 21)}, MalformedMessage),
        ({"tokens": (*TOKENS[:-1], 14)}, MalformedMessage),
        ({"transcript": sign_transcript(VERIFIER, replace(TRANSCRIPT, first=4), d_0=D_0)}, MalformedMessage),
    ],
)
def test_a_transcript_by_another_of_other_tokens_or_of_none_proves_nothing(
    changes: dict[str, Any], error: type[Exception]
) -> None:
    with pytest.raises(error):
        open_claim(replace(CLAIM, **changes))


@pytest.mark.parametrize(
    "changes",
    [
        {"author": AUDITOR.peer_id},
        {"first": 0, "equal": 2},
        {"tokens": 5, "equal": 2},
        {"digest": bytes(16)},
        {"equal": 2},
        {"findings": (replace(FINDING, position=0),)},
        {"findings": (replace(FINDING, position=4),)},
        {"findings": (FINDING, FINDING)},
        {"findings": (replace(FINDING, position=3), FINDING)},
        {"findings": tuple(replace(FINDING, position=position) for position in (1, 2, 3))},
    ],
)
def test_a_verdict_about_something_else_or_that_does_not_add_up_is_worth_nothing(changes: dict[str, Any]) -> None:
    answer = sign_verdict(AUDITOR, replace(VERDICT, **changes), number=7, d_0=D_0)
    with pytest.raises(MalformedMessage):
        open_verdict(answer, auditor=AUDITOR.peer_id, claim=CLAIM)


EARNING = m.Earning(bytes(32), CLIENT.peer_id, DRAFTER.peer_id, 7, 20, NOW_S)
SIGNED_EARNING = sign_earning(VERIFIER, EARNING, d_0=D_0)
RECEIPT = m.Receipt(VERIFIER.peer_id, ("code",), SIGNED_EARNING)
SIGNED_RECEIPT = sign_receipt(CLIENT, RECEIPT, d_0=D_0)


def checked(signed: m.SignedReceipt) -> m.Earning:
    one = read_receipt(signed)
    one.check()
    return one.earning


def test_a_receipt_says_what_both_signed_and_the_longest_fits() -> None:
    assert checked(SIGNED_RECEIPT) == EARNING == open_earning(SIGNED_EARNING, verifier=VERIFIER.peer_id, d_0=D_0)
    one = read_receipt(SIGNED_RECEIPT)
    assert (one.verifier, one.client, one.receipt.expertise) == (VERIFIER.peer_id, CLIENT.peer_id, ("code",))
    longest = replace(RECEIPT, expertise=("x" * 64,) * MAX_EXPERTISE)
    assert len(sign_receipt(CLIENT, longest, d_0=D_0).body) <= MAX_RECEIPT_BYTES
    assert decode_body(m.Receipt, encode_body(longest)) == longest


@given(st.sampled_from(["d_0", "body", "signature"]), st.integers(0, 1 << 16), st.integers(1, 255))
def test_not_a_byte_of_a_receipt_can_be_changed(part: str, place: int, change: int) -> None:
    old = getattr(SIGNED_RECEIPT, part)
    index = place % len(old)
    new = old[:index] + bytes([old[index] ^ change]) + old[index + 1 :]
    with pytest.raises(RemoteProtocolError):
        checked(replace(SIGNED_RECEIPT, **{part: new}))


def test_each_signature_of_a_receipt_is_that_of_its_peer() -> None:
    by_itself = replace(RECEIPT, earning=sign_earning(CLIENT, EARNING, d_0=D_0))
    opens: list[Callable[[], object]] = [
        lambda: checked(sign_receipt(DRAFTER, RECEIPT, d_0=D_0)),
        lambda: checked(sign_receipt(CLIENT, by_itself, d_0=D_0)),
        lambda: checked(sign_receipt(CLIENT, RECEIPT, d_0=bytes(16))),
        lambda: open_earning(SIGNED_EARNING, verifier=CLIENT.peer_id, d_0=D_0),
    ]
    for open_forged in opens:
        with pytest.raises(BadSignature):
            open_forged()


@pytest.mark.parametrize(
    "changes",
    [{"drafter": VERIFIER.peer_id}, {"drafter": CLIENT.peer_id}, {"client": VERIFIER.peer_id}, {"tokens": 21}],
)
def test_a_receipt_needs_three_peers_and_no_more_tokens_than_text(changes: dict[str, Any]) -> None:
    receipt = replace(RECEIPT, earning=sign_earning(VERIFIER, replace(EARNING, **changes), d_0=D_0))
    with pytest.raises(MalformedMessage):
        read_receipt(sign_receipt(CLIENT, receipt, d_0=D_0))


@given(st.binary(max_size=200))
def test_whatever_the_bytes_are_a_receipt_is_read_or_refused(body: bytes) -> None:
    for data in (body, encode_body(RECEIPT) + body[:1]):
        try:
            read_receipt(replace(SIGNED_RECEIPT, body=data))
        except MalformedMessage:
            continue
