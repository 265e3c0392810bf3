"""The messages of a chain of stages: how it is set up, the operations that go down it, and what comes back."""

import re
from dataclasses import dataclass
from enum import IntEnum
from typing import Annotated

from cosine_protocol import limits
from cosine_protocol.errors import MalformedMessage, UsageError
from cosine_protocol.fields import (
    Added,
    Bytes,
    ContentDigest,
    Flag,
    Inline,
    Items,
    Maybe,
    Microseconds,
    Name,
    Number,
    PeerId,
    Real,
    Struct,
    Text,
    Whole,
    exactly,
)
from cosine_protocol.request import Sampling


@dataclass(frozen=True, slots=True, order=True, kw_only=True)
class LayerRange:
    """Layers `first` to before `end`, from 0, of `layers`. Raises `MalformedMessage` unless some of them."""

    first: int
    end: int
    layers: int

    def __post_init__(self) -> None:
        if not 0 <= self.first < self.end <= self.layers:
            raise MalformedMessage(f"{self.first}:{self.end} are no layers of a model of {self.layers}")

    @classmethod
    def parse(cls, text: str, *, layers: int) -> "LayerRange":
        """The range that a user writes as `8:16`, the end not included. Raises `UsageError`."""
        found = re.fullmatch(r"([0-9]{1,9}):([0-9]{1,9})", text)
        try:
            if found is not None:
                return cls(first=int(found[1]), end=int(found[2]), layers=layers)
        except MalformedMessage:
            pass
        raise UsageError(
            f"'{text}' names no layers of a model of {layers}; write the first and the one after the last, "
            f"for example 0:{layers}."
        )

    @classmethod
    def whole(cls, layers: int) -> "LayerRange":
        return cls(first=0, end=layers, layers=layers)

    def __str__(self) -> str:
        return f"{self.first}:{self.end}"

    def __len__(self) -> int:
        return self.end - self.first

    def __contains__(self, layer: int) -> bool:
        return self.first <= layer < self.end

    @property
    def is_first(self) -> bool:
        return self.first == 0

    @property
    def is_last(self) -> bool:
        return self.end == self.layers

    def overlaps(self, other: "LayerRange") -> bool:
        return self.layers == other.layers and self.first < other.end and other.first < self.end

    def precedes(self, other: "LayerRange") -> bool:
        return self.layers == other.layers and self.end == other.first


ChainId = Annotated[bytes, exactly(limits.CHAIN_ID_BYTES)]
FedTokens = Annotated[tuple[int, ...], Items(Whole(limits.MAX_TOKEN_ID), limits.MAX_FEED_TOKENS)]
FedNodes = Annotated[tuple[int, ...], Items(Whole(limits.MAX_REQUEST_NUMBER), limits.MAX_FEED_TOKENS)]
FedParents = Annotated[tuple[int, ...], Items(Whole(limits.MAX_REQUEST_NUMBER, -1), limits.MAX_FEED_TOKENS)]
NamedNodes = Annotated[tuple[int, ...], Items(Whole(limits.MAX_REQUEST_NUMBER), limits.MAX_NAMED_NODES)]
PoolTokens = Annotated[int, Whole(limits.MAX_POOL_TOKENS, 1)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Join:
    """A head asks a stage to hold the layers from `first_layer` to the one before `end_layer` in a chain.

    Operations come from `source` and go to `target`, at `addresses`; the last stage has none. The pools of a chain
    are of `pool_tokens`, and `window_pool_tokens` for layers that look back `window_tokens`. The first sequence has
    the number `first_sequence`.
    """

    chain: ChainId
    target_digest: ContentDigest
    numerics: Name
    first_layer: Annotated[int, Whole(limits.MAX_LAYERS)]
    end_layer: Annotated[int, Whole(limits.MAX_LAYERS, 1)]
    layers: Annotated[int, Whole(limits.MAX_LAYERS, 1)]
    pool_tokens: PoolTokens
    window_pool_tokens: Annotated[int | None, Maybe(Whole(limits.MAX_POOL_TOKENS, 1))]
    window_tokens: Annotated[int | None, Maybe(Whole(limits.MAX_POOL_TOKENS, 1))]
    first_sequence: Number
    source: PeerId
    target: Annotated[str | None, Maybe(Text(limits.MAX_PEER_ID_BYTES))]
    addresses: Annotated[tuple[str, ...], Items(Text(limits.MAX_NAME_BYTES), limits.MAX_ADDRESSES)]


@dataclass(frozen=True, slots=True)
class Joined:
    """The stage holds its layers for the chain, and the way to the next stage is open."""

    chain: ChainId


@dataclass(frozen=True, slots=True)
class Follow:
    """A stage tells the next one that the operations of a chain come over this stream."""

    chain: ChainId


@dataclass(frozen=True, slots=True)
class OpenSequence:
    """A new sequence, of the next number. Sequences of one `scope` share prefixes."""

    sequence: Number
    sampling: Annotated[Sampling, Inline(Sampling)]
    prompt_tokens: Annotated[int, Whole(limits.MAX_PROMPT_TOKENS)]
    scope: Annotated[str | None, Maybe(Text(limits.MAX_NAME_BYTES))]


@dataclass(frozen=True, slots=True)
class ReusePrefix:
    """An empty sequence begins with what is known of these tokens: all but the last."""

    sequence: Number
    tokens: Annotated[tuple[int, ...], Items(Whole(limits.MAX_TOKEN_ID), limits.MAX_PROMPT_TOKENS)]


@dataclass(frozen=True, slots=True)
class ReserveRoom:
    """Room is made in a sequence for so many more tokens."""

    sequence: Number
    tokens: Annotated[int, Whole(limits.MAX_POOL_TOKENS)]


@dataclass(frozen=True, slots=True)
class FedRow:
    """Tokens of one sequence, their nodes, and the nodes before them, -1 for the end of the prefix.

    Choices are wanted after `tokens[scored_from:]`, with `candidates` each.
    """

    sequence: Number
    tokens: FedTokens
    nodes: FedNodes
    parents: FedParents
    scored_from: Annotated[int, Whole(limits.MAX_FEED_TOKENS)]
    candidates: Annotated[int, Whole(limits.MAX_CANDIDATES)]
    wants_nll: Annotated[bool, Flag()]


@dataclass(frozen=True, slots=True)
class FeedPass:
    """A pass over rows. `activation_bytes` follow, in `Activations` without anything between them.

    The first stage gets none. To others 0 says that the stage before has not computed the pass.
    """

    number: Number
    rows: Annotated[tuple[FedRow, ...], Items(Struct(FedRow), limits.MAX_FEED_ROWS)]
    activation_bytes: Annotated[int, Whole(limits.MAX_ACTIVATION_BYTES)]


@dataclass(frozen=True, slots=True)
class Activations:
    """The next bytes of the activations of the feed before: `MAX_PART_BYTES`, in the last part what is left."""

    data: Annotated[bytes, Bytes(limits.MAX_PART_BYTES)]


@dataclass(frozen=True, slots=True)
class KeepPath:
    """Nodes that follow each other become part of a sequence's prefix."""

    sequence: Number
    path: NamedNodes


@dataclass(frozen=True, slots=True)
class PruneNodes:
    """Nodes of a sequence and what descends from them are dropped."""

    sequence: Number
    nodes: NamedNodes


@dataclass(frozen=True, slots=True)
class ReleaseSequence:
    """A sequence is forgotten."""

    sequence: Number


class RowFault(IntEnum):
    """Why a row has no choices: its logits were not finite, all its feed's nodes were dropped before it ran, or its
    constraint cannot be applied.
    """

    NONE = 0
    BAD_LOGITS = 1
    NOT_COMPUTED = 2
    BAD_CONSTRAINT = 3


@dataclass(frozen=True, slots=True)
class TokenEstimate:
    """A token that may be chosen, and how likely."""

    token: Annotated[int, Whole(limits.MAX_TOKEN_ID)]
    probability: Annotated[float, Real(1.0)]


CandidateTokens = Annotated[
    tuple[tuple[TokenEstimate, ...], ...],
    Items(Items(Struct(TokenEstimate), limits.MAX_CANDIDATES), limits.MAX_FEED_TOKENS),
]


@dataclass(frozen=True, slots=True)
class RowAnswer:
    """A row's tokens, and margins (float 64, little-endian), after each scored one; `candidates` or none."""

    fault: Annotated[int, Whole(3)]
    tokens: FedTokens
    margins: Annotated[bytes, Bytes(limits.MARGIN_BYTES * limits.MAX_FEED_TOKENS)]
    candidates: CandidateTokens
    nll: Annotated[float | None, Maybe(Real(1e6))]


@dataclass(frozen=True, slots=True)
class Results:
    """The last stage's answer to the feed of that number: one for each of its rows, in their order."""

    number: Number
    rows: Annotated[tuple[RowAnswer, ...], Items(Struct(RowAnswer), limits.MAX_FEED_ROWS)]


@dataclass(frozen=True, slots=True)
class FeedPart:
    """The tokens of a feed from `first` on, so many, in the order of its rows."""

    feed: Number
    first: Annotated[int, Whole(limits.MAX_FEED_TOKENS)]
    tokens: Annotated[int, Whole(limits.MAX_FEED_TOKENS, 1)]


@dataclass(frozen=True, slots=True)
class Probe:
    """A head asks a stage what entered and left it in parts of feeds that it has computed.

    The seed is drawn after these passes: it says which projections of each token's vector are told.
    """

    seed: Annotated[bytes, exactly(limits.PROBE_SEED_BYTES)]
    parts: Annotated[tuple[FeedPart, ...], Items(Struct(FeedPart), limits.MAX_PROBE_PARTS)]


TokenProjections = Annotated[bytes, Bytes(limits.PROJECTIONS * limits.PROJECTION_BYTES * limits.MAX_FEED_TOKENS)]


@dataclass(frozen=True, slots=True)
class PartTrace:
    """Projections of the vectors of each token of a part, as float 32, little-endian, token by token.

    Both are empty where the stage has not kept the feed, `entered` for the first stage, `left` for the last.
    """

    entered: TokenProjections
    left: TokenProjections


@dataclass(frozen=True, slots=True)
class Probed:
    """The answer to a probe: one trace for each of its parts, in their order."""

    parts: Annotated[tuple[PartTrace, ...], Items(Struct(PartTrace), limits.MAX_PROBE_PARTS)]


@dataclass(frozen=True, slots=True)
class Passed:
    """A stage has passed the feed of that number on, or answers it, after `held_us`.

    It `is_left_out` where no activations were passed on, or nothing was chosen. Its activations took `came_us` to
    come; None where there were none, or the stage was not ready to read them.
    """

    number: Number
    held_us: Microseconds
    is_left_out: Annotated[bool, Flag()]
    came_us: Annotated[int | None, Added(Whole(3_600_000_000))] = None


BookOperation = OpenSequence | ReusePrefix | ReserveRoom | KeepPath | PruneNodes | ReleaseSequence
"""An operation without a pass."""
StageMessage = Join | Joined | Follow | BookOperation | FeedPass | Activations | Results | Probe | Probed | Passed
