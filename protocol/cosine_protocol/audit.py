"""`/cosine/audit`: a verifier computes a text again and signs a verdict about the transcript of another. Pure."""

from dataclasses import dataclass
from typing import Annotated, ClassVar, Final

from cosine_protocol import fields as f
from cosine_protocol.digests import request_digest, roll_digest
from cosine_protocol.draft import CommittedTokens
from cosine_protocol.errors import MalformedMessage
from cosine_protocol.identity import Signed, open_signed
from cosine_protocol.request import Request
from cosine_protocol.stage import MAX_NAMED_STAGES
from cosine_protocol.stream import StreamMessage
from cosine_protocol.verify import Likelihoods, Transcript, told_digest

AUDIT: Final = "/cosine/audit/1.0.0"

MAX_AUDIT_FINDINGS: Final = 64  # Bounds a verdict; one large difference is enough to accuse.
MAX_SCORE_GAP: Final = 1e6  # Represents infinity.


@f.message(80)
class AskAudit:
    """Ask whether the auditor would have committed these tokens, which `author` signed in `transcript`."""

    number: f.Number
    request: Request
    tokens: CommittedTokens
    author: f.PeerId
    transcript: Signed[Transcript]
    likelihoods: Annotated[Likelihoods, f.AtMost(f.MAX_PROMPT_TOKENS)] | None = None


@dataclass(frozen=True, slots=True)
class AuditFinding:
    """A position where the auditor would have committed `token`, with the difference of the scores."""

    position: f.Position
    token: f.Token
    gap: Annotated[float, f.Real(MAX_SCORE_GAP)]


@dataclass(frozen=True, slots=True)
class AuditVerdict:
    """An auditor's signed statement about a transcript of `author`, whose fields it repeats.

    equal, near_ties, different: Numbers of equal positions, and of those that differ by rounding or by more.
    findings: Differing positions in order; if there are too many, `different` ones take precedence.
    widest_gap, mean_gap: Largest and mean difference of likelihoods, in nats.
    stages: The stages that computed for the auditor.
    """

    KIND: ClassVar = "audit"
    MAX_BYTES: ClassVar = 4096

    author: f.PeerId
    first: f.Position
    tokens: f.Position
    digest: f.Digest
    equal: f.Position
    near_ties: f.Position
    different: f.Position
    findings: Annotated[tuple[AuditFinding, ...], f.AtMost(MAX_AUDIT_FINDINGS)]
    widest_gap: Annotated[float, f.Real(MAX_SCORE_GAP)] | None = None
    mean_gap: Annotated[float, f.Real(MAX_SCORE_GAP, -MAX_SCORE_GAP)] | None = None
    stages: Annotated[tuple[f.PeerId, ...], f.AtMost(MAX_NAMED_STAGES)] | None = None


@f.message(81)
class Audited:
    """The answer to `AskAudit`. `body` decodes to an `AuditVerdict`."""

    number: f.Number
    body: Annotated[bytes, f.Bytes(AuditVerdict.MAX_BYTES)]
    signature: f.Signature


AuditMessage = StreamMessage | AskAudit | Audited


def open_claim(claim: AskAudit) -> Transcript:
    """The transcript, signed for exactly this request and tokens. Raises `BadSignature`, `MalformedMessage`."""
    d_0 = request_digest(claim.request)
    transcript = open_signed(Transcript, claim.transcript, author=claim.author, digest=d_0)
    if not transcript.first < transcript.tokens == len(claim.tokens):
        raise MalformedMessage("the transcript is of another number of tokens")
    if roll_digest(d_0, claim.tokens) != transcript.digest:
        raise MalformedMessage("the transcript is of other tokens")
    _check_told(claim, transcript)
    return transcript


def _check_told(claim: AskAudit, transcript: Transcript) -> None:
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


def open_verdict(answer: Audited, *, auditor: str, claim: AskAudit) -> AuditVerdict:
    """The verdict of `auditor` about a valid claim. Raises `BadSignature` and `MalformedMessage`."""
    verdict = open_signed(AuditVerdict, answer, author=auditor, digest=request_digest(claim.request))
    transcript = f.decode_body(Transcript, claim.transcript.body)
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
        raise MalformedMessage("the verdict lacks the likelihoods")
    return verdict
