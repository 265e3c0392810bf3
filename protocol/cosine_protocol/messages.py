"""The messages of the wire, one frozen dataclass each (`docs/protocol.md`)."""

import math
from dataclasses import dataclass
from enum import IntEnum
from typing import Annotated, ClassVar

from cosine_protocol import limits
from cosine_protocol.fields import (
    Added,
    Bytes,
    ContentDigest,
    Digest,
    Flag,
    Items,
    Maybe,
    Microseconds,
    Name,
    Number,
    PeerId,
    Position,
    Real,
    Signature,
    Signed,
    SignedField,
    Struct,
    Text,
    Whole,
    exactly,
)
from cosine_protocol.likelihoods import Likelihood
from cosine_protocol.nodes import NodeBlock
from cosine_protocol.request import Request
from cosine_protocol.stage_messages import StageMessage

CommittedTokens = Annotated[tuple[int, ...], Items(Whole(limits.MAX_TOKEN_ID), limits.MAX_NEW_TOKENS)]
CommitTokens = Annotated[tuple[int, ...], Items(Whole(limits.MAX_TOKEN_ID), limits.MAX_COMMIT_TOKENS)]
AuthorIndices = Annotated[bytes, Bytes(limits.MAX_TREE_NODES)]
PredictedTokens = Items(Whole(limits.MAX_TOKEN_ID), limits.MAX_PREDICTION_TOKENS)
RetryAfter = Real(3600.0)  # An hour is as good as a refusal.


# Messages of every stream, and certificates of private swarms.


@dataclass(frozen=True, slots=True)
class Hello:
    """The first message on every stream, in both directions."""

    version: Annotated[int, Whole(255, 1)]
    features: Annotated[tuple[str, ...], Items(Text(64), limits.MAX_FEATURES)]
    agent: Name


@dataclass(frozen=True, slots=True)
class Ping:
    """Heartbeat. The counts of passes and of fed prompt tokens distinguish a busy peer from a stalled one."""

    number: Number
    steps: Number
    prefill_tokens: Number


@dataclass(frozen=True, slots=True)
class Pong:
    number: Number


@dataclass(frozen=True, slots=True)
class Error:
    """A failure of one request, or of the stream if `number` is 0."""

    number: Number
    code: Annotated[int, Whole(255)]
    message: Annotated[str, Text(limits.MAX_TEXT_BYTES)]
    retry_after_s: Annotated[float | None, Maybe(RetryAfter)]


@dataclass(frozen=True, slots=True)
class Certificate:
    """A swarm's certificate for a member. `swarm` is its peer id; `serial` grows. Times are Unix seconds."""

    KIND: ClassVar = "member"
    MAX_BYTES: ClassVar = limits.MAX_CERTIFICATE_BYTES

    swarm: PeerId
    name: Annotated[str, Text(limits.MAX_SWARM_NAME_BYTES)]
    member: PeerId
    serial: Number
    starts_at_s: Annotated[float, Real(1e11)]
    ends_at_s: Annotated[float, Real(1e11)]


@dataclass(frozen=True, slots=True)
class Revocation:
    """Certificates of this member up to this serial number are revoked."""

    member: PeerId
    serial: Number


@dataclass(frozen=True, slots=True)
class Revocations:
    """All unexpired revocations of a swarm. The list with the highest sequence is valid."""

    KIND: ClassVar = "revoked"
    MAX_BYTES: ClassVar = limits.MAX_REVOCATIONS_BYTES

    swarm: PeerId
    sequence: Number
    revoked: Annotated[tuple[Revocation, ...], Items(Struct(Revocation), limits.MAX_REVOKED)]


@dataclass(frozen=True, slots=True)
class Member:
    """Sent before the hello between members: a signed `Certificate`, and the newest known sequence, or 0."""

    certificate: Annotated[bytes, Bytes(limits.MAX_CERTIFICATE_BYTES)]
    revocations: Number


@dataclass(frozen=True, slots=True)
class Revoked:
    """Sent after `Member` to a peer with an older list: encoded signed `Revocations`."""

    revocations: Annotated[bytes, Bytes(limits.MAX_REVOCATIONS_BYTES)]


# Signed statements about a request (`statements.py`).


@dataclass(frozen=True, slots=True)
class Mandate:
    """A client's mandate: `delegate` may coordinate `drafters` for one request. Times are Unix seconds.

    shares_feedback: Drafters may learn from the text; the `pupil` follows the request only for that.
    shown: The digest of the request with the part of the prompt that drafters see.
    """

    KIND: ClassVar = "mandate"
    MAX_BYTES: ClassVar = limits.MAX_MANDATE_BYTES

    delegate: PeerId
    drafters: Annotated[tuple[str, ...], Items(Text(limits.MAX_PEER_ID_BYTES), limits.MAX_AUTHORS)]
    most_tokens: Position
    issued_at_s: Annotated[float, Real(1e11)]
    lifetime_s: Annotated[float, Real(limits.MAX_MANDATE_S)]
    prompt_window_tokens: Annotated[int | None, Added(Whole(limits.MAX_PROMPT_TOKENS, 1))] = None
    shares_feedback: Annotated[bool | None, Added(Flag())] = None
    pupil: Annotated[str | None, Added(Text(limits.MAX_PEER_ID_BYTES))] = None
    shown: Annotated[bytes | None, Added(exactly(limits.DIGEST_BYTES))] = None


@dataclass(frozen=True, slots=True)
class Transcript:
    """A verifier's statement that it committed the output positions from `first` to `tokens` - 1.

    `digest` is that of the prefix after `tokens` output tokens, `told` that of the sent likelihoods.
    """

    KIND: ClassVar = "transcript"
    MAX_BYTES: ClassVar = 64

    first: Position
    tokens: Position
    digest: Digest
    told: Annotated[bytes | None, Added(exactly(limits.DIGEST_BYTES))] = None


# The end of a request, of a verifier or a drafter.


class FinishReason(IntEnum):
    LENGTH = 0
    EOS = 1
    CANCELLED = 2


@dataclass(frozen=True, slots=True)
class Account:
    """The signed body of a `Final`: the last digest, output tokens, and accepted nodes per author index."""

    KIND: ClassVar = "final"
    MAX_BYTES: ClassVar = 2048

    number: Number
    reason: Annotated[int, Whole(2)]
    tokens: Position
    digest: Digest
    accepted: Annotated[tuple[int, ...], Items(Whole(limits.MAX_NEW_TOKENS), limits.MAX_AUTHORS)]


@dataclass(frozen=True, slots=True)
class Final:
    """The signed end of a request. `body` decodes to an `Account`."""

    body: Annotated[bytes, Bytes(Account.MAX_BYTES)]
    signature: Signature


# Verify.


class Pacing(IntEnum):
    """`FREE`: the verifier may add its own drafts. `PLAIN`: it adds none. It never waits for drafts."""

    FREE = 0
    PLAIN = 1


@dataclass(frozen=True, slots=True)
class Open:
    """Ask a verifier to continue after `committed`. Requests of one `cache_scope` share cached prefixes.

    `prediction` is the output that the client expects, from which the verifier may draft.
    """

    number: Number
    request: Request
    committed: CommittedTokens
    pacing: Annotated[int, Whole(1)]
    authors: Annotated[tuple[str, ...], Items(Text(limits.MAX_PEER_ID_BYTES), limits.MAX_AUTHORS)]
    cache_scope: Annotated[bytes | None, Added(exactly(limits.CACHE_SCOPE_BYTES))] = None
    prediction: Annotated[tuple[int, ...] | None, Added(PredictedTokens)] = None


@dataclass(frozen=True, slots=True)
class Opened:
    """The verifier accepts. `pass_us` is for one token; drafts pay above an acceptance of `break_even` permille."""

    number: Number
    pass_us: Microseconds
    break_even: Annotated[int | None, Added(Whole(1000))] = None


@dataclass(frozen=True, slots=True)
class Tree:
    """Draft nodes for the live tree. `authors[i]` is 1 + the index in `Open.authors` of node i's author."""

    number: Number
    base: Digest
    position: Position
    nodes: NodeBlock
    authors: AuthorIndices


@dataclass(frozen=True, slots=True)
class PassStats:
    """Statistics of a pass: fed nodes, committed near ties, time; in the first one cached prompt tokens."""

    nodes: Annotated[int, Whole(limits.MAX_TREE_NODES)]
    near_ties: Annotated[int, Whole(limits.MAX_COMMIT_TOKENS)]
    pass_us: Microseconds
    cached_tokens: Annotated[int | None, Added(Whole(limits.MAX_PROMPT_TOKENS))] = None


@dataclass(frozen=True, slots=True)
class Commit:
    """Output tokens from `position` on, and the digest after them.

    `authors` has one byte per token: 0 for the target's own, else the author of the node.
    """

    number: Number
    position: Position
    tokens: CommitTokens
    digest: Digest
    authors: AuthorIndices
    stats: PassStats
    transcript: Annotated[Signed[Transcript] | None, Added(SignedField(Transcript))] = None
    likelihoods: Annotated[
        tuple[Likelihood, ...] | None, Added(Items(Struct(Likelihood), limits.MAX_COMMIT_TOKENS))
    ] = None


@dataclass(frozen=True, slots=True)
class PromptLikelihoods:
    """The likelihoods of the prompt tokens from index `position` on."""

    number: Number
    position: Annotated[int, Whole(limits.MAX_PROMPT_TOKENS, 1)]
    likelihoods: Annotated[tuple[Likelihood, ...], Items(Struct(Likelihood), limits.MAX_TOLD_TOKENS)]


@dataclass(frozen=True, slots=True)
class Cancel:
    number: Number


@dataclass(frozen=True, slots=True)
class Delegate:
    """The client asks the verifier to coordinate the drafters in `Open.authors`."""

    number: Number
    mandate: Signed[Mandate]


@dataclass(frozen=True, slots=True)
class Declined:
    """The verifier does not coordinate the request, but goes on serving it."""

    number: Number
    message: Annotated[str, Text(limits.MAX_TEXT_BYTES)]


@dataclass(frozen=True, slots=True)
class Revoke:
    """The client ends the coordination by the verifier."""

    number: Number


@dataclass(frozen=True, slots=True)
class Credit:
    """Proof of an accepted draft: `body` decodes to a `Draft` signed by that author."""

    number: Number
    author: Annotated[int, Whole(limits.MAX_AUTHORS, 1)]
    body: Annotated[bytes, Bytes(8192)]
    signature: Signature


@dataclass(frozen=True, slots=True)
class Report:
    """A delegate's decision about a drafter of `nodes` (author 0: their total); `offered` tokens had drafts."""

    number: Number
    author: Annotated[int, Whole(limits.MAX_AUTHORS)]
    nodes: Number
    rtt_us: Microseconds
    why: Name
    offered: Annotated[int | None, Added(Whole(limits.MAX_NEW_TOKENS))] = None


# Draft.


@dataclass(frozen=True, slots=True)
class Start:
    """Ask a drafter to follow a request. A delegate needs the client's mandate.

    With the digest `d_0`, `request` has only the end of the prompt, and no nonce. `shares_feedback` lets the
    drafter keep the text; a mandate's field takes precedence.
    """

    number: Number
    request: Request
    committed: CommittedTokens
    mandate: Annotated[Signed[Mandate] | None, Added(SignedField(Mandate))] = None
    d_0: Annotated[bytes | None, Added(exactly(limits.DIGEST_BYTES))] = None
    shares_feedback: Annotated[bool | None, Added(Flag())] = None


@dataclass(frozen=True, slots=True)
class Started:
    """The drafter accepts. `prompt_nll` is its mean negative log-likelihood of the prompt, in nats per token."""

    number: Number
    prompt_nll: Annotated[float, Real(1e6)]
    token_us: Microseconds


@dataclass(frozen=True, slots=True)
class Assign:
    """Draft below `base`, at most `depth` tokens deep, with `width` nodes per pass.

    `window` bounds the nodes that no `Advance` has resolved. Paths less likely than one in `rarity` are held back.
    """

    number: Number
    base: Digest
    position: Position
    depth: Annotated[int, Whole(limits.MAX_TREE_DEPTH, 1)]
    width: Annotated[int, Whole(limits.MAX_TREE_NODES, 1)]
    window: Annotated[int, Whole(limits.MAX_WINDOW_NODES, 1)]
    rarity: Annotated[int | None, Added(Whole(limits.MAX_RARITY, 1))] = None


@dataclass(frozen=True, slots=True)
class Draft:
    """The signed body of a `Fragment`: nodes below the prefix `base`, whose output length is `position`."""

    KIND: ClassVar = "fragment"
    MAX_BYTES: ClassVar = 8192

    number: Number
    sequence: Number
    base: Digest
    position: Position
    nodes: NodeBlock


@dataclass(frozen=True, slots=True)
class Fragment:
    """A signed part of a draft tree. `body` decodes to a `Draft`."""

    body: Annotated[bytes, Bytes(8192)]
    signature: Signature


@dataclass(frozen=True, slots=True)
class Advance:
    number: Number
    position: Position
    tokens: CommitTokens


@dataclass(frozen=True, slots=True)
class Busy:
    number: Number
    retry_after_s: Annotated[float, RetryAfter]


class ReleaseReason(IntEnum):
    ENDED = 0  # The request has ended here.
    UNWANTED = 1  # Drafters do not pay.
    SELDOM_RIGHT = 2
    OTHERS_BETTER = 3
    NOTHING_NEW = 4


@dataclass(frozen=True, slots=True)
class Release:
    """End drafting: `accepted` of `text_tokens` were the drafter's. Repeated at the end of the request."""

    number: Number
    accepted: Annotated[int | None, Added(Whole(limits.MAX_NEW_TOKENS))] = None
    text_tokens: Annotated[int | None, Added(Whole(limits.MAX_NEW_TOKENS))] = None
    reason: Annotated[int | None, Added(Whole(max(ReleaseReason)))] = None


# Discover, status, audit.


@dataclass(frozen=True, slots=True)
class AskRecords:
    number: Number
    key: Name


@dataclass(frozen=True, slots=True)
class Records:
    number: Number
    records: Annotated[tuple[bytes, ...], Items(Bytes(limits.MAX_RECORD_BYTES), limits.MAX_CELL_OWNERS)]


@dataclass(frozen=True, slots=True)
class AskFile:
    """Ask for a piece of a tokenizer file by tokenizer digest. `compresses` allows compression."""

    number: Number
    tokenizer_digest: ContentDigest
    name: Name
    offset: Annotated[int, Whole(limits.MAX_FILE_BYTES)]
    compresses: Annotated[bool | None, Added(Flag())] = None


@dataclass(frozen=True, slots=True)
class FilePiece:
    """At most `MAX_CHUNK_BYTES` of a file, perhaps as zlib (RFC 1950). `total_bytes` is its size, 0 if missing."""

    number: Number
    total_bytes: Annotated[int, Whole(limits.MAX_FILE_BYTES)]
    data: Annotated[bytes, Bytes(limits.MAX_CHUNK_BYTES)]
    is_compressed: Annotated[bool | None, Added(Flag())] = None


@dataclass(frozen=True, slots=True)
class NetworkCoordinate:
    """A peer's Vivaldi coordinate in microseconds of round-trip time (Dabek et al., SIGCOMM 2004, section 5.4).

    height_us: The way from the machine to the well-connected part of the network.
    error_permille: The recent relative error of estimates; 1000 is a guess.
    """

    x_us: Annotated[int, Whole(limits.MAX_COORDINATE_US, -limits.MAX_COORDINATE_US)]
    y_us: Annotated[int, Whole(limits.MAX_COORDINATE_US, -limits.MAX_COORDINATE_US)]
    z_us: Annotated[int, Whole(limits.MAX_COORDINATE_US, -limits.MAX_COORDINATE_US)]
    height_us: Annotated[int, Whole(limits.MAX_COORDINATE_US)]
    error_permille: Annotated[int, Whole(1000)]

    def rtt_s(self, other: "NetworkCoordinate") -> float:
        """Estimated round-trip time to another peer, in seconds."""
        apart_us = math.dist((self.x_us, self.y_us, self.z_us), (other.x_us, other.y_us, other.z_us))
        return (apart_us + (self.height_us + other.height_us)) / 1e6


@dataclass(frozen=True, slots=True)
class AskStatus:
    number: Number


@dataclass(frozen=True, slots=True)
class Status:
    """The status of a node. A drafter contributed `accepted` of `text_tokens`."""

    number: Number
    record: Annotated[bytes, Bytes(limits.MAX_RECORD_BYTES)]
    requests: Annotated[int, Whole(1 << 20)]
    steps: Number
    uptime_s: Annotated[float, Real(1e12)]
    coordinate: Annotated[NetworkCoordinate | None, Added(Struct(NetworkCoordinate))] = None
    accepted: Annotated[int | None, Added(Whole(limits.MAX_REQUEST_NUMBER))] = None
    text_tokens: Annotated[int | None, Added(Whole(limits.MAX_REQUEST_NUMBER))] = None


@dataclass(frozen=True, slots=True)
class AskAudit:
    """Ask whether the auditor would have committed these tokens, which `author` signed in `transcript`."""

    number: Number
    request: Request
    tokens: CommittedTokens
    author: PeerId
    transcript: Signed[Transcript]
    likelihoods: Annotated[
        tuple[Likelihood, ...] | None, Added(Items(Struct(Likelihood), limits.MAX_PROMPT_TOKENS))
    ] = None


@dataclass(frozen=True, slots=True)
class AuditFinding:
    """A position where the auditor would have committed `token`, with the difference of the scores."""

    position: Position
    token: Annotated[int, Whole(limits.MAX_TOKEN_ID)]
    gap: Annotated[float, Real(limits.MAX_SCORE_GAP)]


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

    author: PeerId
    first: Position
    tokens: Position
    digest: Digest
    equal: Position
    near_ties: Position
    different: Position
    findings: Annotated[tuple[AuditFinding, ...], Items(Struct(AuditFinding), limits.MAX_AUDIT_FINDINGS)]
    widest_gap: Annotated[float | None, Added(Real(limits.MAX_SCORE_GAP))] = None
    mean_gap: Annotated[float | None, Added(Real(limits.MAX_SCORE_GAP, -limits.MAX_SCORE_GAP))] = None
    stages: Annotated[
        tuple[str, ...] | None, Added(Items(Text(limits.MAX_PEER_ID_BYTES), limits.MAX_NAMED_STAGES))
    ] = None


@dataclass(frozen=True, slots=True)
class Audited:
    """The answer to `AskAudit`. `body` decodes to an `AuditVerdict`."""

    number: Number
    body: Annotated[bytes, Bytes(AuditVerdict.MAX_BYTES)]
    signature: Signature


# Weights.


class WeightKind(IntEnum):
    """The manifest; a part by its row; a bit for each tensor, 1 if held, highest bit first; the digests of a
    tensor's pieces; a tensor's bytes.
    """

    MANIFEST = 0
    PART = 1
    HELD = 2
    DIGESTS = 3
    TENSOR = 4


@dataclass(frozen=True, slots=True)
class AskWeights:
    """Ask for bytes of a model from `offset` on. `index` is the row in the manifest, or 0."""

    number: Number
    content_digest: ContentDigest
    kind: Annotated[int, Whole(4)]
    index: Annotated[int, Whole(limits.MAX_TENSORS)]
    offset: Annotated[int, Whole(limits.MAX_TENSOR_BYTES)]


@dataclass(frozen=True, slots=True)
class WeightBytes:
    """At most `MAX_CHUNK_BYTES` from the offset on, and the total size."""

    number: Number
    total_bytes: Annotated[int, Whole(limits.MAX_TENSOR_BYTES)]
    data: Annotated[bytes, Bytes(limits.MAX_CHUNK_BYTES)]


Message = (
    Hello | Ping | Pong | Error | Open | Opened | Tree | Commit | PromptLikelihoods | Cancel | Final | Delegate
    | Declined | Revoke | Credit | Report | Start | Started | Assign | Fragment | Advance | Busy | Release
    | AskRecords | Records | AskFile | FilePiece | AskStatus | Status | AskAudit | Audited | Member | Revoked
    | StageMessage | AskWeights | WeightBytes
)  # fmt: skip
