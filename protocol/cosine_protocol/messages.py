"""Every message that may travel, one frozen dataclass each. `docs/protocol.md` explains when."""

from dataclasses import dataclass
from enum import IntEnum
from typing import Annotated

from cosine_protocol import limits
from cosine_protocol.audit_messages import AskAudit, Audited, TranscriptField
from cosine_protocol.coordinates import NetworkCoordinate
from cosine_protocol.fields import (
    Added,
    Bytes,
    Digest,
    Flag,
    Items,
    Maybe,
    Microseconds,
    Name,
    Number,
    Position,
    Real,
    Signature,
    Struct,
    Text,
    Whole,
    exactly,
)
from cosine_protocol.file_messages import AskFile, FilePiece
from cosine_protocol.mandate_messages import SignedMandate
from cosine_protocol.member_messages import Member, Revoked
from cosine_protocol.nodes import NodeBlock
from cosine_protocol.receipt_messages import EarningItems, Receipted, ReceiptItems, SignedEarning, SignedReceipt
from cosine_protocol.request import Request
from cosine_protocol.stage_messages import StageMessage

Nodes = Annotated[NodeBlock, Struct(NodeBlock)]
RequestField = Annotated[Request, Struct(Request)]
AuthorIndices = Annotated[bytes, Bytes(limits.MAX_TREE_NODES)]
CommittedTokens = Annotated[tuple[int, ...], Items(Whole(limits.MAX_TOKEN_ID), limits.MAX_NEW_TOKENS)]
CommitTokens = Annotated[tuple[int, ...], Items(Whole(limits.MAX_TOKEN_ID), limits.MAX_COMMIT_TOKENS)]
MAX_RETRY_AFTER_S = 3600.0
"""Bounds a peer's word: an hour is as good as a refusal."""


class Pacing(IntEnum):
    """`FREE`: the verifier never waits, and may add drafts of its own. `PLAIN`: as `FREE`, without those.
    `STEPPED`: one pass per `Verify`.
    """

    FREE = 0
    STEPPED = 1
    PLAIN = 2


class FinishReason(IntEnum):
    """Why a stream ended."""

    LENGTH = 0
    EOS = 1
    CANCELLED = 2


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
    retry_after_s: Annotated[float | None, Maybe(Real(MAX_RETRY_AFTER_S))]


@dataclass(frozen=True, slots=True)
class Open:
    """Ask a verifier to go on after `committed`; only requests of one `cache_scope` share cached prefixes."""

    number: Number
    request: RequestField
    committed: CommittedTokens
    pacing: Annotated[int, Whole(2)]
    authors: Annotated[tuple[str, ...], Items(Text(limits.MAX_PEER_ID_BYTES), limits.MAX_AUTHORS)]
    cache_scope: Annotated[bytes | None, Added(Bytes(limits.CACHE_SCOPE_BYTES, limits.CACHE_SCOPE_BYTES))] = None


@dataclass(frozen=True, slots=True)
class Opened:
    """The verifier took the request. `pass_us` is its measured time of a one-token pass."""

    number: Number
    pass_us: Microseconds


@dataclass(frozen=True, slots=True)
class Tree:
    """Draft nodes for the live tree. `authors[i]` is 1 + the index in `Open.authors` of node i's proposer."""

    number: Number
    base: Digest
    position: Position
    nodes: Nodes
    authors: AuthorIndices


@dataclass(frozen=True, slots=True)
class Verify:
    """Stepped pacing: run one pass over these nodes on top of the committed prefix `base`."""

    number: Number
    base: Digest
    position: Position
    nodes: Nodes
    authors: AuthorIndices


@dataclass(frozen=True, slots=True)
class PassStats:
    """One pass: tree nodes fed, committed tokens whose two best scores nearly tied, times."""

    nodes: Annotated[int, Whole(limits.MAX_TREE_NODES)]
    near_ties: Annotated[int, Whole(limits.MAX_COMMIT_TOKENS)]
    pass_us: Microseconds
    held_us: Microseconds


@dataclass(frozen=True, slots=True)
class Commit:
    """Output tokens from `position` on. `digest` is that of the prefix after them.

    `authors` has one byte a token: 0 for the target's own, else the author whose node it was.
    """

    number: Number
    position: Position
    tokens: CommitTokens
    digest: Digest
    authors: AuthorIndices
    stats: Annotated[PassStats, Struct(PassStats)]
    transcript: TranscriptField = None


@dataclass(frozen=True, slots=True)
class Verified:
    """Stepped pacing: the outcome of the `Verify` whose base was `base`; fields as in `Commit`."""

    number: Number
    base: Digest
    position: Position
    tokens: CommitTokens
    digest: Digest
    authors: AuthorIndices
    stats: Annotated[PassStats, Struct(PassStats)]
    transcript: TranscriptField = None


@dataclass(frozen=True, slots=True)
class Cancel:
    """The client no longer wants the stream."""

    number: Number


@dataclass(frozen=True, slots=True)
class Delegate:
    """The client asks the verifier to coordinate the drafters of the request, which are those of `Open.authors`."""

    number: Number
    mandate: Annotated[SignedMandate, Struct(SignedMandate)]


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
    """A delegate's decision about a drafter, which has sent so many nodes; with author 0, about their number."""

    number: Number
    author: Annotated[int, Whole(limits.MAX_AUTHORS)]
    nodes: Number
    rtt_us: Microseconds
    why: Name


@dataclass(frozen=True, slots=True)
class Account:
    """The body that a `Final` signs: the last digest, output tokens, and accepted nodes per author index."""

    number: Number
    reason: Annotated[int, Whole(2)]
    tokens: Position
    digest: Digest
    accepted: Annotated[tuple[int, ...], Items(Whole(limits.MAX_NEW_TOKENS), limits.MAX_AUTHORS)]


@dataclass(frozen=True, slots=True)
class Final:
    """The end of a request, signed by the serving peer. `body` decodes to an `Account`.

    A verifier adds what each drafter has earned.
    """

    body: Annotated[bytes, Bytes(2048)]
    signature: Signature
    earned: Annotated[tuple[SignedEarning, ...] | None, Added(EarningItems)] = None


@dataclass(frozen=True, slots=True)
class Start:
    """Ask a drafter to follow a request. A peer that is not its client shows the client's mandate.

    With `d_0`, the digest of the request, `request` holds the end of its prompt alone, and no nonce. With
    `shares_feedback` the drafter may keep the text to learn from it; where there is a mandate, that one says so.
    """

    number: Number
    request: RequestField
    committed: CommittedTokens
    mandate: Annotated[SignedMandate | None, Added(Struct(SignedMandate))] = None
    d_0: Annotated[bytes | None, Added(exactly(limits.DIGEST_BYTES))] = None
    shares_feedback: Annotated[bool | None, Added(Flag())] = None


@dataclass(frozen=True, slots=True)
class Started:
    """The drafter follows. `prompt_nll` is its mean negative log-likelihood of the prompt, nats a token.

    The first one of a stream may show receipts.
    """

    number: Number
    prompt_nll: Annotated[float, Real(1e6)]
    token_us: Microseconds
    receipts: Annotated[tuple[SignedReceipt, ...] | None, Added(ReceiptItems)] = None


@dataclass(frozen=True, slots=True)
class Assign:
    """Draft below `base` + `guess`: at most `depth` tokens deep, `width` nodes expanded a pass.

    `window` bounds the nodes sent and not yet resolved by an `Advance`. Paths less likely than one in `rarity` are
    kept back; without it the drafter chooses.
    """

    number: Number
    base: Digest
    position: Position
    guess: Annotated[tuple[int, ...], Items(Whole(limits.MAX_TOKEN_ID), limits.MAX_GUESS_TOKENS)]
    depth: Annotated[int, Whole(limits.MAX_TREE_DEPTH, 1)]
    width: Annotated[int, Whole(limits.MAX_TREE_NODES, 1)]
    window: Annotated[int, Whole(limits.MAX_WINDOW_NODES, 1)]
    rarity: Annotated[int | None, Added(Whole(limits.MAX_RARITY, 1))] = None


@dataclass(frozen=True, slots=True)
class Draft:
    """The body that a `Fragment` signs: nodes that extend the prefix `base`, whose output length is `position`."""

    number: Number
    sequence: Number
    base: Digest
    position: Position
    nodes: Nodes


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
    retry_after_s: Annotated[float, Real(MAX_RETRY_AFTER_S)]


@dataclass(frozen=True, slots=True)
class Release:
    """The client no longer wants drafts for the request."""

    number: Number


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
class AskStatus:
    """Status: what the node is doing."""

    number: Number


@dataclass(frozen=True, slots=True)
class Status:
    """A node's own present account of itself. `requests` are those served now."""

    number: Number
    record: Annotated[bytes, Bytes(limits.MAX_RECORD_BYTES)]
    requests: Annotated[int, Whole(1 << 20)]
    steps: Number
    uptime_s: Annotated[float, Real(1e12)]
    coordinate: Annotated[NetworkCoordinate | None, Added(Struct(NetworkCoordinate))] = None


Message = (
    Hello | Ping | Pong | Error | Open | Opened | Tree | Verify | Commit | Verified | Cancel | Final | Delegate
    | Declined | Revoke | Credit | Report | Start | Started | Assign | Fragment | Advance | Busy | Release
    | AskRecords | Records | AskFile | FilePiece | AskStatus | Status | AskAudit | Audited | Member | Revoked
    | Receipted | StageMessage
)  # fmt: skip
