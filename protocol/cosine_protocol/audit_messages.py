"""What a verifier signs of its stream, and the messages in which another one is asked to check it."""

from dataclasses import dataclass
from typing import Annotated

from cosine_protocol import limits
from cosine_protocol.fields import (
    Added,
    Bytes,
    Digest,
    Items,
    Number,
    PeerId,
    Position,
    Real,
    Signature,
    Struct,
    Whole,
)
from cosine_protocol.request import Request

Token = Annotated[int, Whole(limits.MAX_TOKEN_ID)]


@dataclass(frozen=True, slots=True)
class Transcript:
    """The body that a verifier signs: it committed the output positions from `first` to `tokens` - 1.

    `digest` is that of the prefix after `tokens` output tokens; those before `first` were given to it.
    """

    first: Position
    tokens: Position
    digest: Digest


@dataclass(frozen=True, slots=True)
class SignedTranscript:
    """A transcript as it travels; `body` decodes to a `Transcript`."""

    body: Annotated[bytes, Bytes(64)]
    signature: Signature


TranscriptField = Annotated[SignedTranscript | None, Added(Struct(SignedTranscript))]


@dataclass(frozen=True, slots=True)
class AskAudit:
    """Would the receiver have committed these output tokens? `author` signed `transcript` for this request."""

    number: Number
    request: Annotated[Request, Struct(Request)]
    tokens: Annotated[tuple[int, ...], Items(Whole(limits.MAX_TOKEN_ID), limits.MAX_NEW_TOKENS)]
    author: PeerId
    transcript: Annotated[SignedTranscript, Struct(SignedTranscript)]


@dataclass(frozen=True, slots=True)
class AuditFinding:
    """An output position at which the auditor would have committed `token`.

    `gap` is the score of `token` less that of the committed one, or at least so much: `MAX_SCORE_GAP` if that one
    is ruled out.
    """

    position: Position
    token: Token
    gap: Annotated[float, Real(limits.MAX_SCORE_GAP)]


@dataclass(frozen=True, slots=True)
class AuditVerdict:
    """The body that an auditor signs about a transcript of `author`, whose fields it repeats.

    Of its positions so many are `equal`, others differ by a near tie of the numerics, and `different` ones by more.
    `findings` are those that are not equal, in order of position; where they are too many, `different` ones first.
    """

    author: PeerId
    first: Position
    tokens: Position
    digest: Digest
    equal: Position
    near_ties: Position
    different: Position
    findings: Annotated[tuple[AuditFinding, ...], Items(Struct(AuditFinding), limits.MAX_AUDIT_FINDINGS)]


@dataclass(frozen=True, slots=True)
class Audited:
    """The answer to `AskAudit`. `body` decodes to an `AuditVerdict`."""

    number: Number
    body: Annotated[bytes, Bytes(4096)]
    signature: Signature
