"""Signatures of transcripts and verdicts, and what must agree for one to speak of the other. Pure."""

from typing import Final

from cosine_protocol.codec import decode_body, encode_body
from cosine_protocol.digests import request_digest, roll_digest
from cosine_protocol.errors import MalformedMessage
from cosine_protocol.identity import Identity, verify
from cosine_protocol.limits import TRANSCRIPT_EVERY_TOKENS
from cosine_protocol.messages import AskAudit, Audited, AuditVerdict, SignedTranscript, Transcript

# The kinds of the two signatures.
TRANSCRIPT_KIND: Final = "transcript"
VERDICT_KIND: Final = "audit"


def is_transcript_due(*, before: int, after: int, has_ended: bool) -> bool:
    """True for a commit from `before` to `after` output tokens that must carry a transcript."""
    return has_ended or before // TRANSCRIPT_EVERY_TOKENS < after // TRANSCRIPT_EVERY_TOKENS


def sign_transcript(author: Identity, transcript: Transcript, *, d_0: bytes) -> SignedTranscript:
    """What `author` committed of the request `d_0`, signed."""
    body = encode_body(transcript)
    return SignedTranscript(body, author.sign(kind=TRANSCRIPT_KIND, digest=d_0, body=body))


def open_transcript(signed: SignedTranscript, *, author: str, d_0: bytes) -> Transcript:
    """What `author` signed. Raises `BadSignature` and `MalformedMessage`."""
    verify(kind=TRANSCRIPT_KIND, signer=author, digest=d_0, body=signed.body, signature=signed.signature)
    return decode_body(Transcript, signed.body)


def open_claim(claim: AskAudit) -> Transcript:
    """The transcript of a question, which its author signed for exactly this request and these tokens.

    Raises `BadSignature` and `MalformedMessage`.
    """
    d_0 = request_digest(claim.request)
    transcript = open_transcript(claim.transcript, author=claim.author, d_0=d_0)
    if not transcript.first < transcript.tokens == len(claim.tokens):
        raise MalformedMessage("the transcript is of another number of tokens")
    if roll_digest(d_0, claim.tokens) != transcript.digest:
        raise MalformedMessage("the transcript is of other tokens")
    return transcript


def sign_verdict(auditor: Identity, verdict: AuditVerdict, *, number: int, d_0: bytes) -> Audited:
    """The answer to the question `number` about the request `d_0`."""
    body = encode_body(verdict)
    return Audited(number, body, auditor.sign(kind=VERDICT_KIND, digest=d_0, body=body))


def open_verdict(answer: Audited, *, auditor: str, claim: AskAudit) -> AuditVerdict:
    """What `auditor` signed about a claim that holds. Raises `BadSignature` and `MalformedMessage`."""
    d_0 = request_digest(claim.request)
    verify(kind=VERDICT_KIND, signer=auditor, digest=d_0, body=answer.body, signature=answer.signature)
    verdict, transcript = decode_body(AuditVerdict, answer.body), decode_body(Transcript, claim.transcript.body)
    audited = (verdict.author, verdict.first, verdict.tokens, verdict.digest)
    if audited != (claim.author, transcript.first, transcript.tokens, transcript.digest):
        raise MalformedMessage("the verdict is about another transcript")
    found = verdict.near_ties + verdict.different
    positions = [finding.position for finding in verdict.findings]
    is_complete = verdict.equal + found == verdict.tokens - verdict.first
    is_within = all(verdict.first <= position < verdict.tokens for position in positions)
    if not is_complete or not is_within or positions != sorted(set(positions)) or len(positions) > found:
        raise MalformedMessage("the verdict's counts do not fit its transcript")
    return verdict
