"""A transcript binds its author to a request and its tokens, a verdict binds its auditor to a transcript."""

from dataclasses import replace
from typing import Any

import pytest

from cosine_protocol.digests import request_digest, roll_digest
from cosine_protocol.errors import BadSignature, MalformedMessage
from cosine_protocol.limits import TRANSCRIPT_EVERY_TOKENS
from cosine_protocol.messages import AskAudit, AuditFinding, AuditVerdict, Transcript
from cosine_protocol.statements import (
    is_transcript_due,
    open_claim,
    open_transcript,
    open_verdict,
    sign_transcript,
    sign_verdict,
)
from tests.protocol.samples import OTHER, OWNER, request_of

AUTHOR, AUDITOR = OWNER, OTHER
REQUEST = request_of()
D_0 = request_digest(REQUEST)
TOKENS = (3, 5, 8, 13)
DIGEST = roll_digest(D_0, TOKENS)
TRANSCRIPT = Transcript(1, len(TOKENS), DIGEST)
SIGNED = sign_transcript(AUTHOR, TRANSCRIPT, d_0=D_0)
CLAIM = AskAudit(7, REQUEST, TOKENS, AUTHOR.peer_id, SIGNED)
VERDICT = AuditVerdict(AUTHOR.peer_id, 1, len(TOKENS), DIGEST, 1, 1, 1, (AuditFinding(2, 9, 4.0),))


@pytest.mark.parametrize(
    ("before", "after", "has_ended", "is_due"),
    [
        (0, 1, False, False),
        (0, 1, True, True),
        (0, TRANSCRIPT_EVERY_TOKENS - 1, False, False),
        (TRANSCRIPT_EVERY_TOKENS - 1, TRANSCRIPT_EVERY_TOKENS, False, True),
        (TRANSCRIPT_EVERY_TOKENS, TRANSCRIPT_EVERY_TOKENS + 1, False, False),
        (TRANSCRIPT_EVERY_TOKENS + 1, 5 * TRANSCRIPT_EVERY_TOKENS, False, True),
    ],
)
def test_a_transcript_is_due_now_and_then_and_at_the_end(
    before: int, after: int, has_ended: bool, is_due: bool
) -> None:
    assert is_transcript_due(before=before, after=after, has_ended=has_ended) is is_due


def test_what_the_author_signed_holds_for_this_request_and_these_tokens() -> None:
    assert open_transcript(SIGNED, author=AUTHOR.peer_id, d_0=D_0) == open_claim(CLAIM) == TRANSCRIPT


@pytest.mark.parametrize(
    "changes",
    [
        {"author": AUDITOR.peer_id},
        {"author": "nobody"},
        {"request": request_of(nonce=bytes(16))},
        {"transcript": replace(SIGNED, body=SIGNED.body + b"\0")},
        {"transcript": sign_transcript(AUDITOR, TRANSCRIPT, d_0=D_0)},
    ],
)
def test_nobody_else_and_nothing_else_is_signed(changes: dict[str, Any]) -> None:
    with pytest.raises(BadSignature):
        open_claim(replace(CLAIM, **changes))


@pytest.mark.parametrize(
    "claim",
    [
        replace(CLAIM, tokens=TOKENS[:-1]),
        replace(CLAIM, tokens=(*TOKENS, 21)),
        replace(CLAIM, tokens=(*TOKENS[:-1], 14)),
        replace(CLAIM, transcript=sign_transcript(AUTHOR, replace(TRANSCRIPT, first=4), d_0=D_0)),
    ],
    ids=["fewer tokens", "more tokens", "another token", "nothing of its own"],
)
def test_a_transcript_of_other_tokens_or_of_none_proves_nothing(claim: AskAudit) -> None:
    with pytest.raises(MalformedMessage):
        open_claim(claim)


def test_a_verdict_holds_for_its_claim() -> None:
    answer = sign_verdict(AUDITOR, VERDICT, number=7, d_0=D_0)
    assert open_verdict(answer, auditor=AUDITOR.peer_id, claim=CLAIM) == VERDICT
    with pytest.raises(BadSignature):
        open_verdict(answer, auditor=AUTHOR.peer_id, claim=CLAIM)
    with pytest.raises(BadSignature):
        open_verdict(answer, auditor=AUDITOR.peer_id, claim=replace(CLAIM, request=request_of(nonce=bytes(16))))


@pytest.mark.parametrize(
    "changes",
    [
        {"author": AUDITOR.peer_id},
        {"first": 0, "equal": 2},
        {"tokens": 5, "equal": 2},
        {"digest": bytes(16)},
        {"equal": 2},
        {"findings": (AuditFinding(0, 9, 4.0),)},
        {"findings": (AuditFinding(4, 9, 4.0),)},
        {"findings": (AuditFinding(2, 9, 4.0), AuditFinding(2, 9, 4.0))},
        {"findings": (AuditFinding(3, 9, 4.0), AuditFinding(2, 9, 4.0))},
        {"findings": tuple(AuditFinding(position, 9, 4.0) for position in (1, 2, 3))},
    ],
)
def test_a_verdict_about_something_else_or_that_does_not_add_up_is_worth_nothing(changes: dict[str, Any]) -> None:
    answer = sign_verdict(AUDITOR, replace(VERDICT, **changes), number=7, d_0=D_0)
    with pytest.raises(MalformedMessage):
        open_verdict(answer, auditor=AUDITOR.peer_id, claim=CLAIM)
