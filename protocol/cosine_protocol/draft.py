"""`/cosine/draft`: a client, or its delegate, follows the text with a drafter, which answers with draft trees."""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum
from typing import Annotated, ClassVar, Final

from cosine_protocol import fields as f
from cosine_protocol import stream
from cosine_protocol.errors import BadSignature, ErrorCode, MalformedMessage, PeerError
from cosine_protocol.identity import Signed, open_signed
from cosine_protocol.request import Request
from cosine_protocol.stream import MAX_AUTHORS, StreamMessage

DRAFT: Final = "/cosine/draft/2.0.0"

# Features (docs/protocol.md, section 3): a peer knows mandates and windows of prompts.
MANDATES: Final = "mandate"
WINDOWS: Final = "window"

MAX_TREE_NODES: Final = 256  # A node's parent is one byte, of which one value is the base.
MAX_COMMIT_TOKENS: Final = MAX_TREE_NODES  # A pass commits the accepted nodes of a tree and one more.
MAX_TREE_DEPTH: Final = 64
"""Drafters draft 24 tokens deep, or until the next commit arrives (decision 15): 54 with passes of 60 and 6 ms and
100 ms between all peers."""
MAX_WINDOW_NODES: Final = 4 * MAX_TREE_NODES  # Bounds the unresolved nodes of a drafter to four full trees.
MAX_RARITY: Final = 65_535  # Two bytes. Paths rarer than one in 300 bring a hundredth at most (decision 15).
MAX_MANDATE_BYTES: Final = 4096  # Room for `MAX_AUTHORS` peer ids of 52 characters and the other fields.
MAX_MANDATE_S: Final = 3600.0
"""Bounds the time for which drafters obey a delegate whose client is gone: `MAX_NEW_TOKENS` at 36 tokens/s."""
MAX_BLOCK_NODES: Final = min(MAX_TREE_NODES, 255)  # A node's parent is one byte, of which 0 is the base.
BASE: Final = -1  # The parent of a node that directly extends the block's base.

CommittedTokens = Annotated[tuple[f.Token, ...], f.AtMost(f.MAX_NEW_TOKENS)]
CommitTokens = Annotated[tuple[f.Token, ...], f.AtMost(MAX_COMMIT_TOKENS)]


@dataclass(frozen=True, slots=True)
class Node:
    """One drafted token. `parent` is `BASE` or the index of an earlier node of the same block."""

    parent: int
    token: int
    confidence: float


@dataclass(frozen=True, slots=True)
class NodeBlock:
    """At most 255 nodes, parents before children.

    On the wire a parent is one byte (0 = base, i + 1 = node i) and a confidence one byte (255 = certain). Raises
    `MalformedMessage` where the fields disagree or a parent does not come first.
    """

    parents: Annotated[bytes, f.Bytes(MAX_BLOCK_NODES)]
    tokens: Annotated[tuple[f.Token, ...], f.AtMost(MAX_BLOCK_NODES)]
    confidences: Annotated[bytes, f.Bytes(MAX_BLOCK_NODES)]

    def __post_init__(self) -> None:
        if not len(self.parents) == len(self.tokens) == len(self.confidences):
            raise MalformedMessage("a node block's parents, tokens and confidences differ in number")
        if any(parent > index for index, parent in enumerate(self.parents)):
            raise MalformedMessage("a node of a block comes before its parent")

    def __len__(self) -> int:
        return len(self.tokens)

    def __iter__(self) -> Iterator[Node]:
        for parent, token, confidence in zip(self.parents, self.tokens, self.confidences, strict=True):
            yield Node(parent - 1, token, confidence / 255)

    @classmethod
    def of(cls, nodes: list[Node] | tuple[Node, ...]) -> "NodeBlock":
        """Pack nodes; confidences are rounded to 1/255."""
        return cls(
            bytes(node.parent + 1 for node in nodes),
            tuple(node.token for node in nodes),
            bytes(round(255 * min(max(node.confidence, 0.0), 1.0)) for node in nodes),
        )


@dataclass(frozen=True, slots=True)
class Mandate:
    """A client's mandate: `delegate` may coordinate `drafters` for one request. Times are Unix seconds.

    shares_feedback: Drafters may learn from the text; the `pupil` follows the request only for that.
    shown: The digest of the request with the part of the prompt that drafters see.
    """

    KIND: ClassVar = "mandate"
    MAX_BYTES: ClassVar = MAX_MANDATE_BYTES

    delegate: f.PeerId
    drafters: Annotated[tuple[f.PeerId, ...], f.AtMost(MAX_AUTHORS)]
    most_tokens: f.Position
    issued_at_s: f.Seconds
    lifetime_s: Annotated[float, f.Real(MAX_MANDATE_S)]
    prompt_window_tokens: Annotated[int, f.Whole(f.MAX_PROMPT_TOKENS, 1)] | None = None
    shares_feedback: bool | None = None
    pupil: f.PeerId | None = None
    shown: f.Digest | None = None


@f.message(32)
class Start:
    """Ask a drafter to follow a request. A delegate needs the client's mandate.

    With the digest `d_0`, `request` has only the end of the prompt, and no nonce. `shares_feedback` lets the
    drafter keep the text; a mandate's field takes precedence.
    """

    number: f.Number
    request: Request
    committed: CommittedTokens
    mandate: Signed[Mandate] | None = None
    d_0: f.Digest | None = None
    shares_feedback: bool | None = None


@f.message(33)
class Started:
    """The drafter accepts. `prompt_nll` is its mean negative log-likelihood of the prompt, in nats per token."""

    number: f.Number
    prompt_nll: Annotated[float, f.Real(1e6)]
    token_us: f.Microseconds


@f.message(34)
class Assign:
    """Draft below `base`, at most `depth` tokens deep, with `width` nodes per pass.

    `window` bounds the nodes that no `Advance` has resolved. Paths less likely than one in `rarity` are held back.
    """

    number: f.Number
    base: f.Digest
    position: f.Position
    depth: Annotated[int, f.Whole(MAX_TREE_DEPTH, 1)]
    width: Annotated[int, f.Whole(MAX_TREE_NODES, 1)]
    window: Annotated[int, f.Whole(MAX_WINDOW_NODES, 1)]
    rarity: Annotated[int, f.Whole(MAX_RARITY, 1)] | None = None


@dataclass(frozen=True, slots=True)
class Draft:
    """The signed body of a `Fragment`: nodes below the prefix `base`, whose output length is `position`."""

    KIND: ClassVar = "fragment"
    MAX_BYTES: ClassVar = 8192

    number: f.Number
    sequence: f.Number
    base: f.Digest
    position: f.Position
    nodes: NodeBlock


@f.message(35)
class Fragment:
    """A signed part of a draft tree. `body` decodes to a `Draft`."""

    body: Annotated[bytes, f.Bytes(Draft.MAX_BYTES)]
    signature: f.Signature


@f.message(36)
class Advance:
    number: f.Number
    position: f.Position
    tokens: CommitTokens


@f.message(37)
class Busy:
    number: f.Number
    retry_after_s: Annotated[float, stream.RETRY_AFTER]


class ReleaseReason(IntEnum):
    ENDED = 0  # The request has ended here.
    UNWANTED = 1  # Drafters do not pay.
    SELDOM_RIGHT = 2
    OTHERS_BETTER = 3
    NOTHING_NEW = 4


@f.message(38)
class Release:
    """End drafting: `accepted` of `text_tokens` were the drafter's. Repeated at the end of the request."""

    number: f.Number
    accepted: f.Position | None = None
    text_tokens: f.Position | None = None
    reason: Annotated[int, f.Whole(max(ReleaseReason))] | None = None


DraftMessage = StreamMessage | Start | Started | Assign | Fragment | Advance | Busy | Release | stream.Final


def open_mandate(signed: Signed[Mandate], *, client: str, d_0: bytes, delegate: str, now_s: float) -> Mandate:
    """`client`'s mandate for `delegate` and `d_0`. Raises `PeerError` with `BAD_MANDATE` unless it holds."""
    try:
        mandate = open_signed(Mandate, signed, author=client, digest=d_0)
    except (BadSignature, MalformedMessage) as error:
        raise PeerError(ErrorCode.BAD_MANDATE, str(error)) from None
    if mandate.delegate != delegate:
        raise PeerError(ErrorCode.BAD_MANDATE, "the mandate is for another peer")
    if mandate.issued_at_s > now_s + f.MAX_RECORD_SKEW_S:
        raise PeerError(ErrorCode.BAD_MANDATE, "the mandate lies in the future")
    check_live(mandate, now_s=now_s)
    return mandate


def check_live(mandate: Mandate, *, now_s: float) -> None:
    """Raise `PeerError` with the code `BAD_MANDATE` if a mandate has ended."""
    if now_s > mandate.issued_at_s + mandate.lifetime_s:
        raise PeerError(ErrorCode.BAD_MANDATE, "the mandate has ended")


def check_length(mandate: Mandate, tokens: int) -> None:
    """Raise `PeerError` with the code `BAD_MANDATE` for more output tokens than a mandate allows."""
    if tokens > mandate.most_tokens:
        raise PeerError(ErrorCode.BAD_MANDATE, f"the mandate ends after {mandate.most_tokens} tokens")
