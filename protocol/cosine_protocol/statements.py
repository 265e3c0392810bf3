"""What peers sign about one request, each bound to its digest `d_0`. Pure; times are Unix seconds.

A mandate is a client's word that a verifier may coordinate the request. A transcript says what a verifier committed
of it, and a verdict what an auditor thinks of that.
"""

from collections.abc import Sequence
from typing import Final

from cosine_protocol import messages as m
from cosine_protocol.codec import decode_body, encode_body
from cosine_protocol.digests import request_digest, roll_digest
from cosine_protocol.errors import BadSignature, ErrorCode, MalformedMessage, PeerError
from cosine_protocol.identity import Identity, verify
from cosine_protocol.likelihoods import told_digest
from cosine_protocol.limits import MAX_MANDATE_S, MAX_RECORD_SKEW_S, TRANSCRIPT_EVERY_TOKENS

# The kinds of the signatures.
MANDATE_KIND: Final = "mandate"
TRANSCRIPT_KIND: Final = "transcript"
VERDICT_KIND: Final = "audit"


def _verify(
    signed: m.SignedMandate | m.SignedTranscript | m.Audited,
    *,
    kind: str,
    signer: str,
    d_0: bytes,
) -> None:
    verify(kind=kind, signer=signer, digest=d_0, body=signed.body, signature=signed.signature)


def sign_mandate(
    client: Identity,
    *,
    d_0: bytes,
    delegate: str,
    drafters: Sequence[str],
    most_tokens: int,
    issued_at_s: float,
    lifetime_s: float,
    prompt_window_tokens: int | None = None,
    shares_feedback: bool = False,
    pupil: str | None = None,
    shown: bytes | None = None,
) -> m.SignedMandate:
    """The mandate of `client` for the request `d_0`, for `MAX_MANDATE_S` at most."""
    mandate = m.Mandate(
        delegate,
        tuple(drafters),
        most_tokens,
        issued_at_s,
        min(lifetime_s, MAX_MANDATE_S),
        prompt_window_tokens,
        shares_feedback or None,
        pupil,
        shown,
    )
    body = encode_body(mandate)
    return m.SignedMandate(body, client.sign(kind=MANDATE_KIND, digest=d_0, body=body))


def open_mandate(signed: m.SignedMandate, *, client: str, d_0: bytes, delegate: str, now_s: float) -> m.Mandate:
    """The mandate that `client` gave `delegate` for the request `d_0`, if it holds now.

    Raises `PeerError` with the code `BAD_MANDATE` if it does not.
    """
    try:
        _verify(signed, kind=MANDATE_KIND, signer=client, d_0=d_0)
        mandate = decode_body(m.Mandate, signed.body)
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


def sign_transcript(author: Identity, transcript: m.Transcript, *, d_0: bytes) -> m.SignedTranscript:
    """What `author` committed of the request `d_0`, signed."""
    body = encode_body(transcript)
    return m.SignedTranscript(body, author.sign(kind=TRANSCRIPT_KIND, digest=d_0, body=body))


def open_transcript(signed: m.SignedTranscript, *, author: str, d_0: bytes) -> m.Transcript:
    """What `author` signed. Raises `BadSignature` and `MalformedMessage`."""
    _verify(signed, kind=TRANSCRIPT_KIND, signer=author, d_0=d_0)
    return decode_body(m.Transcript, signed.body)


def open_claim(claim: m.AskAudit) -> m.Transcript:
    """The transcript of a question, which its author signed for exactly this request and these tokens.

    Raises `BadSignature` and `MalformedMessage`.
    """
    d_0 = request_digest(claim.request)
    transcript = open_transcript(claim.transcript, author=claim.author, d_0=d_0)
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


def sign_verdict(auditor: Identity, verdict: m.AuditVerdict, *, number: int, d_0: bytes) -> m.Audited:
    """The answer to the question `number` about the request `d_0`."""
    body = encode_body(verdict)
    return m.Audited(number, body, auditor.sign(kind=VERDICT_KIND, digest=d_0, body=body))


def open_verdict(answer: m.Audited, *, auditor: str, claim: m.AskAudit) -> m.AuditVerdict:
    """What `auditor` signed about a claim that holds. Raises `BadSignature` and `MalformedMessage`."""
    _verify(answer, kind=VERDICT_KIND, signer=auditor, d_0=request_digest(claim.request))
    verdict, transcript = decode_body(m.AuditVerdict, answer.body), decode_body(m.Transcript, claim.transcript.body)
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
