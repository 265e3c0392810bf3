"""Every message that may travel, one frozen dataclass each. `docs/protocol.md` explains when."""

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
from cosine_protocol.weight_messages import WeightMessage

CommittedTokens = Annotated[tuple[int, ...], Items(Whole(limits.MAX_TOKEN_ID), limits.MAX_NEW_TOKENS)]
CommitTokens = Annotated[tuple[int, ...], Items(Whole(limits.MAX_TOKEN_ID), limits.MAX_COMMIT_TOKENS)]
AuthorIndices = Annotated[bytes, Bytes(limits.MAX_TREE_NODES)]
PredictedTokens = Items(Whole(limits.MAX_TOKEN_ID), limits.MAX_PREDICTION_TOKENS)
RetryAfter = Real(3600.0)  # Bounds a peer's word: an hour is as good as a refusal.


# Upkeep of every stream, and the certificates of private swarms.


@dataclass(frozen=True, slots=True)
class Hello:
    """First on every stream, both ways."""

    version: Annotated[int, Whole(255, 1)]
    features: Annotated[tuple[str, ...], Items(Text(64), limits.MAX_FEATURES)]
    agent: Name


@dataclass(frozen=True, slots=True)
class Ping:
    """Heartbeat. `steps` counts passes and `prefill_tokens` prompt tokens fed, to tell alive from stalled."""

    number: Number
    steps: Number
    prefill_tokens: Number


@dataclass(frozen=True, slots=True)
class Pong:
    """The answer to the `Ping` of the same number."""

    number: Number


@dataclass(frozen=True, slots=True)
class Error:
    """A typed failure of one request, or of the stream where `number` is 0."""

    number: Number
    code: Annotated[int, Whole(255)]
    message: Annotated[str, Text(limits.MAX_TEXT_BYTES)]
    retry_after_s: Annotated[float | None, Maybe(RetryAfter)]


@dataclass(frozen=True, slots=True)
class Certificate:
    """The word of a swarm that a peer is its member for a while. Times are Unix seconds.

    `swarm` is its public key as a peer id, `name` is for people. `serial` grows with each certificate of the swarm.
    """

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
    """No certificate of this member counts up to this serial number."""

    member: PeerId
    serial: Number


@dataclass(frozen=True, slots=True)
class Revocations:
    """All that a swarm has revoked and that has not ended by itself; the list of the highest sequence counts."""

    KIND: ClassVar = "revoked"
    MAX_BYTES: ClassVar = limits.MAX_REVOCATIONS_BYTES

    swarm: PeerId
    sequence: Number
    revoked: Annotated[tuple[Revocation, ...], Items(Struct(Revocation), limits.MAX_REVOKED)]


@dataclass(frozen=True, slots=True)
class Member:
    """Before the hello between members: a signed `Certificate`, and the newest sequence of `revocations`, or 0."""

    certificate: Annotated[bytes, Bytes(limits.MAX_CERTIFICATE_BYTES)]
    revocations: Number


@dataclass(frozen=True, slots=True)
class Revoked:
    """After `Member` to a peer that knows an older list: encoded signed `Revocations`."""

    revocations: Annotated[bytes, Bytes(limits.MAX_REVOCATIONS_BYTES)]


# What peers sign about a request (`statements.py`).


@dataclass(frozen=True, slots=True)
class Mandate:
    """The body that a client signs: `delegate` may have `drafters` follow one request. Times are Unix seconds.

    With `shares_feedback` drafters may keep the request's text to learn from it; the `pupil` follows it for nothing
    else. Where drafters see a part of the prompt alone, `shown` is the digest of the request with that part.
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
    """The body that a verifier signs: it committed the output positions from `first` to `tokens` - 1.

    `digest` is that of the prefix after `tokens` output tokens; `told` that of the likelihoods that it has told.
    """

    KIND: ClassVar = "transcript"
    MAX_BYTES: ClassVar = 64

    first: Position
    tokens: Position
    digest: Digest
    told: Annotated[bytes | None, Added(exactly(limits.DIGEST_BYTES))] = None


# The end of a request, of a verifier or a drafter.


class FinishReason(IntEnum):
    """Why a stream ended."""

    LENGTH = 0
    EOS = 1
    CANCELLED = 2


@dataclass(frozen=True, slots=True)
class Account:
    """The body that a `Final` signs: the last digest, output tokens, and accepted nodes per author index."""

    KIND: ClassVar = "final"
    MAX_BYTES: ClassVar = 2048

    number: Number
    reason: Annotated[int, Whole(2)]
    tokens: Position
    digest: Digest
    accepted: Annotated[tuple[int, ...], Items(Whole(limits.MAX_NEW_TOKENS), limits.MAX_AUTHORS)]


@dataclass(frozen=True, slots=True)
class Final:
    """The end of a request, signed by the serving peer. `body` decodes to an `Account`."""

    body: Annotated[bytes, Bytes(Account.MAX_BYTES)]
    signature: Signature


# Verify.


class Pacing(IntEnum):
    """`FREE`: the verifier may add drafts of its own. `PLAIN`: it adds none. It never waits for anybody's."""

    FREE = 0
    PLAIN = 1


@dataclass(frozen=True, slots=True)
class Open:
    """Ask a verifier to go on after `committed`; only requests of one `cache_scope` share cached prefixes.

    `prediction` is what the client expects as output; the verifier may draft from it.
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
    """Took it; `pass_us` for one token. Drafts right less often than `break_even` thousandths cannot pay."""

    number: Number
    pass_us: Microseconds
    break_even: Annotated[int | None, Added(Whole(1000))] = None


@dataclass(frozen=True, slots=True)
class Tree:
    """Draft nodes for the live tree. `authors[i]` is 1 + the index in `Open.authors` of node i's proposer."""

    number: Number
    base: Digest
    position: Position
    nodes: NodeBlock
    authors: AuthorIndices


@dataclass(frozen=True, slots=True)
class PassStats:
    """One pass: nodes fed, near ties committed, its time; `cached_tokens` of the prompt in the first."""

    nodes: Annotated[int, Whole(limits.MAX_TREE_NODES)]
    near_ties: Annotated[int, Whole(limits.MAX_COMMIT_TOKENS)]
    pass_us: Microseconds
    cached_tokens: Annotated[int | None, Added(Whole(limits.MAX_PROMPT_TOKENS))] = None


@dataclass(frozen=True, slots=True)
class Commit:
    """Output tokens from `position` on. `digest` is that of the prefix after them.

    `authors` has one byte a token: 0 for the target's own, else the author whose node it was. `likelihoods` has one
    for each token, where the request asks for them.
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
    """How likely the tokens of the prompt from index `position` on are, each after those before it."""

    number: Number
    position: Annotated[int, Whole(limits.MAX_PROMPT_TOKENS, 1)]
    likelihoods: Annotated[tuple[Likelihood, ...], Items(Struct(Likelihood), limits.MAX_TOLD_TOKENS)]


@dataclass(frozen=True, slots=True)
class Cancel:
    """The client no longer wants the stream."""

    number: Number


@dataclass(frozen=True, slots=True)
class Delegate:
    """The client asks the verifier to coordinate the drafters of the request, which are those of `Open.authors`."""

    number: Number
    mandate: Signed[Mandate]


@dataclass(frozen=True, slots=True)
class Declined:
    """The verifier does not coordinate the request, or no longer; it goes on all the same."""

    number: Number
    message: Annotated[str, Text(limits.MAX_TEXT_BYTES)]


@dataclass(frozen=True, slots=True)
class Revoke:
    """The client takes the coordination back."""

    number: Number


@dataclass(frozen=True, slots=True)
class Credit:
    """A fragment that shows whose drafts a commit accepted. `body` decodes to a `Draft`, signed by that author."""

    number: Number
    author: Annotated[int, Whole(limits.MAX_AUTHORS, 1)]
    body: Annotated[bytes, Bytes(8192)]
    signature: Signature


@dataclass(frozen=True, slots=True)
class Report:
    """A delegate's decision about a drafter of `nodes` (author 0: their number); `offered` tokens had drafts."""

    number: Number
    author: Annotated[int, Whole(limits.MAX_AUTHORS)]
    nodes: Number
    rtt_us: Microseconds
    why: Name
    offered: Annotated[int | None, Added(Whole(limits.MAX_NEW_TOKENS))] = None


# Draft.


@dataclass(frozen=True, slots=True)
class Start:
    """Ask a drafter to follow a request. A peer that is not its client shows the client's mandate.

    With `d_0`, the digest of the request, `request` holds the end of its prompt alone, and no nonce. With
    `shares_feedback` the drafter may keep the text; where there is a mandate, that one says so.
    """

    number: Number
    request: Request
    committed: CommittedTokens
    mandate: Annotated[Signed[Mandate] | None, Added(SignedField(Mandate))] = None
    d_0: Annotated[bytes | None, Added(exactly(limits.DIGEST_BYTES))] = None
    shares_feedback: Annotated[bool | None, Added(Flag())] = None


@dataclass(frozen=True, slots=True)
class Started:
    """The drafter follows. `prompt_nll` is its mean negative log-likelihood of the prompt, nats a token."""

    number: Number
    prompt_nll: Annotated[float, Real(1e6)]
    token_us: Microseconds


@dataclass(frozen=True, slots=True)
class Assign:
    """Draft below `base`: at most `depth` tokens deep, `width` nodes expanded a pass.

    `window` bounds the nodes sent and not yet resolved by an `Advance`. Paths less likely than one in `rarity` are
    kept back; None: the drafter's default.
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
    """The body that a `Fragment` signs: nodes that extend the prefix `base`, whose output length is `position`."""

    KIND: ClassVar = "fragment"
    MAX_BYTES: ClassVar = 8192

    number: Number
    sequence: Number
    base: Digest
    position: Position
    nodes: NodeBlock


@dataclass(frozen=True, slots=True)
class Fragment:
    """A signed piece of draft tree. `body` decodes to a `Draft`."""

    body: Annotated[bytes, Bytes(8192)]
    signature: Signature


@dataclass(frozen=True, slots=True)
class Advance:
    """Output tokens committed from `position` on."""

    number: Number
    position: Position
    tokens: CommitTokens


@dataclass(frozen=True, slots=True)
class Busy:
    """The drafter cannot follow now."""

    number: Number
    retry_after_s: Annotated[float, RetryAfter]


class ReleaseReason(IntEnum):
    """Why a drafter is let go."""

    ENDED = 0  # The request has ended, or goes on elsewhere.
    UNWANTED = 1  # No drafters are wanted: they do not pay.
    SELDOM_RIGHT = 2
    OTHERS_BETTER = 3
    NOTHING_NEW = 4


@dataclass(frozen=True, slots=True)
class Release:
    """No more drafts: of `text_tokens` `accepted` were the drafter's. Who was let go before hears it at the end."""

    number: Number
    accepted: Annotated[int | None, Added(Whole(limits.MAX_NEW_TOKENS))] = None
    text_tokens: Annotated[int | None, Added(Whole(limits.MAX_NEW_TOKENS))] = None
    reason: Annotated[int | None, Added(Whole(max(ReleaseReason)))] = None


# Discover, status, audit.


@dataclass(frozen=True, slots=True)
class AskRecords:
    """Discover: the signed records a node holds under one DHT key."""

    number: Number
    key: Name


@dataclass(frozen=True, slots=True)
class Records:
    """Signed records, verbatim."""

    number: Number
    records: Annotated[tuple[bytes, ...], Items(Bytes(limits.MAX_RECORD_BYTES), limits.MAX_CELL_OWNERS)]


@dataclass(frozen=True, slots=True)
class AskFile:
    """Discover: a piece of a tokenizer file of the target with this tokenizer digest. It may come compressed."""

    number: Number
    tokenizer_digest: ContentDigest
    name: Name
    offset: Annotated[int, Whole(limits.MAX_FILE_BYTES)]
    compresses: Annotated[bool | None, Added(Flag())] = None


@dataclass(frozen=True, slots=True)
class FilePiece:
    """`MAX_CHUNK_BYTES` at most from the offset, zlib (RFC 1950) maybe; `total_bytes` of plain data, 0 for none."""

    number: Number
    total_bytes: Annotated[int, Whole(limits.MAX_FILE_BYTES)]
    data: Annotated[bytes, Bytes(limits.MAX_CHUNK_BYTES)]
    is_compressed: Annotated[bool | None, Added(Flag())] = None


@dataclass(frozen=True, slots=True)
class NetworkCoordinate:
    """A peer's place by its own account, in microseconds of round-trip time from the origin.

    It has three axes and a height, the way from a machine to the well-connected part of the network (Vivaldi: Dabek
    et al., SIGCOMM 2004, section 5.4). `error_permille`: how far estimates with it were off of late, in
    thousandths; 1000 is a guess.
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
    """Status: what the node is doing."""

    number: Number


@dataclass(frozen=True, slots=True)
class Status:
    """A node's own account of itself: `requests` served now; a drafter's accepted part of `text_tokens`."""

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
    """Would you have committed these? `author` signed `transcript` here, with the digest of `likelihoods`."""

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
    """Where the auditor would have committed `token`; `gap` of the scores, or `MAX_SCORE_GAP`."""

    position: Position
    token: Annotated[int, Whole(limits.MAX_TOKEN_ID)]
    gap: Annotated[float, Real(limits.MAX_SCORE_GAP)]


@dataclass(frozen=True, slots=True)
class AuditVerdict:
    """The body that an auditor signs about a transcript of `author`, whose fields it repeats.

    Of its positions `equal` ones agree, `near_ties` differ by rounding, and `different` ones by more. `findings`
    are those that differ, in order of position; where they are too many, `different` ones first. Of likelihoods
    `widest_gap` is the largest difference and `mean_gap` the mean one, in nats. `stages` computed for the auditor.
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


Message = (
    Hello | Ping | Pong | Error | Open | Opened | Tree | Commit | PromptLikelihoods | Cancel | Final | Delegate
    | Declined | Revoke | Credit | Report | Start | Started | Assign | Fragment | Advance | Busy | Release
    | AskRecords | Records | AskFile | FilePiece | AskStatus | Status | AskAudit | Audited | Member | Revoked
    | StageMessage | WeightMessage
)  # fmt: skip
