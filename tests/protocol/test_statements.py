"""Mandates, transcripts and verdicts are bound to one request."""

from dataclasses import astuple, replace
from typing import Any

import pytest

from cosine_protocol.audit import AskAudit, Audited, AuditFinding, AuditVerdict, open_claim, open_verdict
from cosine_protocol.digests import request_digest, roll_digest
from cosine_protocol.draft import MAX_MANDATE_S, Mandate, check_length, check_live, open_mandate
from cosine_protocol.errors import BadSignature, ErrorCode, MalformedMessage, PeerError
from cosine_protocol.fields import MAX_RECORD_SKEW_S
from cosine_protocol.identity import Signed, open_signed, sign
from cosine_protocol.verify import TRANSCRIPT_EVERY_TOKENS, Transcript, is_transcript_due
from tests.protocol.samples import LIFETIME_S, NOW_S, OTHER, OWNER, SWARM, request_of

CLIENT, VERIFIER, DRAFTER, AUDITOR = OTHER, OWNER, SWARM, OTHER
REQUEST = request_of()
D_0 = request_digest(REQUEST)

TERMS: dict[str, Any] = {
    "delegate": VERIFIER.peer_id,
    "drafters": ("a", "b"),
    "most_tokens": 10,
    "issued_at_s": NOW_S,
    "lifetime_s": LIFETIME_S,
}
MANDATE = sign(CLIENT, Mandate(**TERMS), digest=D_0)


def opened_mandate(signed: Signed[Mandate] = MANDATE, **changes: Any) -> Mandate:
    where: dict[str, Any] = {"client": CLIENT.peer_id, "d_0": D_0, "delegate": VERIFIER.peer_id, "now_s": NOW_S}
    return open_mandate(signed, **(where | changes))


def test_a_mandate_is_its_delegates_until_it_ends_and_good_for_so_many_tokens() -> None:
    mandate = Mandate(VERIFIER.peer_id, ("a", "b"), 10, NOW_S, LIFETIME_S)
    for now_s in (NOW_S - MAX_RECORD_SKEW_S, NOW_S, NOW_S + LIFETIME_S):
        assert opened_mandate(now_s=now_s) == mandate
    check_length(mandate, 10)
    with pytest.raises(PeerError, match="ends after 10 tokens"):
        check_length(mandate, 11)
    endless = opened_mandate(sign(CLIENT, Mandate(**TERMS | {"lifetime_s": MAX_MANDATE_S}), digest=D_0))
    check_live(endless, now_s=NOW_S + MAX_MANDATE_S)
    with pytest.raises(PeerError):
        check_live(endless, now_s=NOW_S + MAX_MANDATE_S + 1)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"client": VERIFIER.peer_id}, "the signature of a mandate does not match"),
        ({"d_0": bytes(16)}, "the signature of a mandate does not match"),
        ({"delegate": CLIENT.peer_id}, "for another peer"),
        ({"now_s": NOW_S + LIFETIME_S + 0.1}, "has ended"),
        ({"now_s": NOW_S - MAX_RECORD_SKEW_S - 1}, "lies in the future"),
        ({"signed": replace(MANDATE, body=MANDATE.body + b"\0")}, "does not match"),
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
TRANSCRIPT = Transcript(1, len(TOKENS), DIGEST)
SIGNED = sign(VERIFIER, TRANSCRIPT, digest=D_0)
CLAIM = AskAudit(7, REQUEST, TOKENS, VERIFIER.peer_id, SIGNED)
FINDING = AuditFinding(2, 9, 4.0)
VERDICT = AuditVerdict(VERIFIER.peer_id, 1, len(TOKENS), DIGEST, 1, 1, 1, (FINDING,))


def test_a_transcript_holds_for_its_request_and_tokens_and_a_verdict_for_its_claim() -> None:
    assert open_signed(Transcript, SIGNED, author=VERIFIER.peer_id, digest=D_0) == open_claim(CLAIM) == TRANSCRIPT
    answer = Audited(7, *astuple(sign(AUDITOR, VERDICT, digest=D_0)))
    assert open_verdict(answer, auditor=AUDITOR.peer_id, claim=CLAIM) == VERDICT
    other = replace(CLAIM, request=request_of(nonce=bytes(16)))
    for auditor, claim in ((VERIFIER, CLAIM), (AUDITOR, other)):
        with pytest.raises(BadSignature):
            open_verdict(answer, auditor=auditor.peer_id, claim=claim)


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"author": AUDITOR.peer_id}, BadSignature),
        ({"request": request_of(nonce=bytes(16))}, BadSignature),
        ({"transcript": replace(SIGNED, body=SIGNED.body + b"\0")}, BadSignature),
        ({"transcript": sign(AUDITOR, TRANSCRIPT, digest=D_0)}, BadSignature),
        ({"tokens": TOKENS[:-1]}, MalformedMessage),
        ({"tokens": (*TOKENS[:-1], 14)}, MalformedMessage),
        ({"transcript": sign(VERIFIER, replace(TRANSCRIPT, first=4), digest=D_0)}, MalformedMessage),
    ],
)
def test_a_foreign_or_empty_transcript_proves_nothing(changes: dict[str, Any], error: type[Exception]) -> None:
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
        {"findings": (replace(FINDING, position=3), FINDING)},
        {"findings": tuple(replace(FINDING, position=position) for position in (1, 2, 3))},
    ],
)
def test_a_verdict_about_something_else_or_that_does_not_add_up_is_worth_nothing(changes: dict[str, Any]) -> None:
    answer = Audited(7, *astuple(sign(AUDITOR, replace(VERDICT, **changes), digest=D_0)))
    with pytest.raises(MalformedMessage):
        open_verdict(answer, auditor=AUDITOR.peer_id, claim=CLAIM)
