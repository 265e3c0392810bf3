"""Signed statements: mandates of clients, transcripts of verifiers, verdicts of auditors. Pure.

A signature covers the encoded body, its kind, the signer, and the digest of its subject, for requests `d_0`
(docs/protocol.md, section 9). Times are Unix seconds.
"""

from typing import Protocol

from cosine_protocol import messages as m
from cosine_protocol.codec import decode_body, encode_body
from cosine_protocol.digests import request_digest, roll_digest
from cosine_protocol.errors import BadSignature, ErrorCode, MalformedMessage, PeerError
from cosine_protocol.fields import BodyT, Signed, SignedBody
from cosine_protocol.identity import Identity, verify
from cosine_protocol.likelihoods import told_digest
from cosine_protocol.limits import MAX_RECORD_SKEW_S, TRANSCRIPT_EVERY_TOKENS


class SignedBytes(Protocol):
    """A `Signed`, or a message that holds its two fields."""

    @property
    def body(self) -> bytes: ...

    @property
    def signature(self) -> bytes: ...


def sign(author: Identity, body: BodyT, *, digest: bytes = b"") -> Signed[BodyT]:
    """A body with the signature of `author`, bound to `digest`."""
    encoded = encode_body(body)
    return Signed(encoded, author.sign(kind=body.KIND, digest=digest, body=encoded))


def check_signature(cls: type[SignedBody], signed: SignedBytes, *, author: str, digest: bytes = b"") -> None:
    """Raise `BadSignature` unless `author` signed the body as one of `cls`, bound to `digest`."""
    verify(kind=cls.KIND, signer=author, digest=digest, body=signed.body, signature=signed.signature)


def open_signed(cls: type[BodyT], signed: SignedBytes, *, author: str, digest: bytes = b"") -> BodyT:
    """The body that `author` signed. Raises `BadSignature` and `MalformedMessage`."""
    check_signature(cls, signed, author=author, digest=digest)
    return decode_body(cls, signed.body)


def unseal(cls: type[BodyT], data: bytes) -> Signed[BodyT]:
    """The inverse of `encode_body` for a `Signed`; its signature is not checked. Raises `MalformedMessage`."""
    signed: Signed[BodyT] = decode_body(Signed, data)
    if len(signed.body) > cls.MAX_BYTES:
        raise MalformedMessage(f"a {cls.KIND} of {len(signed.body)} bytes is over the limit of {cls.MAX_BYTES}")
    return signed


def open_mandate(signed: Signed[m.Mandate], *, client: str, d_0: bytes, delegate: str, now_s: float) -> m.Mandate:
    """`client`'s mandate for `delegate` and `d_0`. Raises `PeerError` with `BAD_MANDATE` unless it holds."""
    try:
        mandate = open_signed(m.Mandate, signed, author=client, digest=d_0)
    except (BadSignature, MalformedMessage) as error:
        raise PeerError(ErrorCode.BAD_MANDATE, str(error)) from None
    if mandate.delegate != delegate:
        raise PeerError(ErrorCode.BAD_MANDATE, "the mandate is for another peer")
    if mandate.issued_at_s > now_s + MAX_RECORD_SKEW_S:
        raise PeerError(ErrorCode.BAD_MANDATE, "the mandate lies in the future")
    check_live(mandate, now_s=now_s)
    return mandate


def check_live(mandate: m.Mandate, *, now_s: float) -> None:
    """Raise `PeerError` with the code `BAD_MANDATE` if a mandate has ended."""
    if now_s > mandate.issued_at_s + mandate.lifetime_s:
        raise PeerError(ErrorCode.BAD_MANDATE, "the mandate has ended")


def check_length(mandate: m.Mandate, tokens: int) -> None:
    """Raise `PeerError` with the code `BAD_MANDATE` for more output tokens than a mandate allows."""
    if tokens > mandate.most_tokens:
        raise PeerError(ErrorCode.BAD_MANDATE, f"the mandate ends after {mandate.most_tokens} tokens")


def is_transcript_due(*, before: int, after: int, has_ended: bool) -> bool:
    """True for a commit from `before` to `after` output tokens that must carry a transcript."""
    return has_ended or before // TRANSCRIPT_EVERY_TOKENS < after // TRANSCRIPT_EVERY_TOKENS


def open_claim(claim: m.AskAudit) -> m.Transcript:
    """The transcript, signed for exactly this request and tokens. Raises `BadSignature`, `MalformedMessage`."""
    d_0 = request_digest(claim.request)
    transcript = open_signed(m.Transcript, claim.transcript, author=claim.author, digest=d_0)
    if not transcript.first < transcript.tokens == len(claim.tokens):
        raise MalformedMessage("the transcript is of another number of tokens")
    if roll_digest(d_0, claim.tokens) != transcript.digest:
        raise MalformedMessage("the transcript is of other tokens")
    _check_told(claim, transcript)
    return transcript


def _check_told(claim: m.AskAudit, transcript: m.Transcript) -> None:
    """Raise `MalformedMessage` for other likelihoods than the transcript's author has told."""
    if (claim.likelihoods is None) != (transcript.told is None):
        raise MalformedMessage("a transcript and its likelihoods belong together")
    if claim.likelihoods is None:
        return
    asked = claim.request.logprobs
    if asked is None or told_digest(claim.likelihoods) != transcript.told:
        raise MalformedMessage("the transcript is of other likelihoods")
    of_prompt = len(claim.request.prompt) - 1 if asked.of_prompt and not transcript.first else 0
    if len(claim.likelihoods) != of_prompt + transcript.tokens - transcript.first:
        raise MalformedMessage("there is not one likelihood for each token")


def open_verdict(answer: m.Audited, *, auditor: str, claim: m.AskAudit) -> m.AuditVerdict:
    """The verdict of `auditor` about a valid claim. Raises `BadSignature` and `MalformedMessage`."""
    verdict = open_signed(m.AuditVerdict, answer, author=auditor, digest=request_digest(claim.request))
    transcript = decode_body(m.Transcript, claim.transcript.body)
    audited = (verdict.author, verdict.first, verdict.tokens, verdict.digest)
    if audited != (claim.author, transcript.first, transcript.tokens, transcript.digest):
        raise MalformedMessage("the verdict is about another transcript")
    found = verdict.near_ties + verdict.different
    positions = [finding.position for finding in verdict.findings]
    is_complete = verdict.equal + found == verdict.tokens - verdict.first
    is_within = all(verdict.first <= position < verdict.tokens for position in positions)
    if not is_complete or not is_within or positions != sorted(set(positions)) or len(positions) > found:
        raise MalformedMessage("the verdict's counts do not fit its transcript")
    if not (verdict.widest_gap is None) == (verdict.mean_gap is None) == (claim.likelihoods is None):
        raise MalformedMessage("the verdict says nothing of the likelihoods")
    return verdict
