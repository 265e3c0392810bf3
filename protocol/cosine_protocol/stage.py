"""`/cosine/stage`: a head feeds a chain of stages. Set-up, operations, results and probes."""

import re
from dataclasses import dataclass
from enum import IntEnum
from typing import Annotated, Final

from cosine_protocol import fields as f
from cosine_protocol.draft import MAX_TREE_NODES
from cosine_protocol.errors import MalformedMessage, UsageError
from cosine_protocol.request import Sampling
from cosine_protocol.stream import StreamMessage

STAGE: Final = "/cosine/stage/1.0.0"

# Features (docs/protocol.md, section 3): a stage answers probes, and reports the times of its passes.
PROBES: Final = "probe"
TIMES: Final = "times"

CHAIN_ID_BYTES: Final = 16  # 128 random bits cannot be guessed.
MAX_LAYERS: Final = 4096  # Thirty times the depth of the deepest open models.
MAX_NAMED_STAGES: Final = 16  # Their peer ids take a fifth of a record, and of a verdict.
MAX_POOL_TOKENS: Final = 1 << 30  # The maximum in a record.
MAX_FEED_ROWS: Final = 1024  # Far above the number of concurrent requests of a node.
MAX_FEED_TOKENS: Final = 4096  # Above the size of prompt chunks; rows take up to 100 KB.
MAX_FEED_CHOICES: Final = 32_768  # Bounds an answer, choices and candidates, to half a frame.
MAX_CANDIDATES: Final = MAX_TREE_NODES  # The maximum of a tree.
MAX_NAMED_NODES: Final = 65_536  # Bounds a frame: the longest names take 590 KB.
MAX_ACTIVATION_BYTES: Final = MAX_FEED_TOKENS * 8192 * 4  # `MAX_FEED_TOKENS` of width 8,192 in float32.
MAX_PART_BYTES: Final = f.MAX_CHUNK_BYTES  # Lets heartbeats pass between two parts of activations.
PROBE_SEED_BYTES: Final = 16  # 128 random bits cannot be guessed.
KEPT_TOKENS: Final = 256  # Tokens kept for probes: 16 MiB at a width of 8,192 in float32.
MAX_PROBE_PARTS: Final = KEPT_TOKENS  # Each part has at least one of the tokens kept.
PROJECTIONS: Final = 16  # Estimate the distance of two vectors within a factor of four, except once in 10**8 times.
PROJECTION_BYTES: Final = 4  # A float32; inputs and outputs of `MAX_FEED_TOKENS` take half a frame.
MARGIN_BYTES: Final = 8  # A float64, which may be infinite.


@dataclass(frozen=True, slots=True, order=True, kw_only=True)
class LayerRange:
    """Layers from `first` to before `end` of `layers`. Raises `MalformedMessage` if it is empty or out of range."""

    first: int
    end: int
    layers: int

    def __post_init__(self) -> None:
        if not 0 <= self.first < self.end <= self.layers:
            raise MalformedMessage(f"{self.first}:{self.end} are no layers of a model of {self.layers}")

    @classmethod
    def parse(cls, text: str, *, layers: int) -> "LayerRange":
        """Parse a range such as `8:16`, without its end. Raises `UsageError`."""
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


ChainId = Annotated[bytes, f.exactly(CHAIN_ID_BYTES)]
FedTokens = Annotated[tuple[f.Token, ...], f.AtMost(MAX_FEED_TOKENS)]
FedNodes = Annotated[tuple[f.Number, ...], f.AtMost(MAX_FEED_TOKENS)]
FedParents = Annotated[tuple[Annotated[int, f.Whole(f.MAX_REQUEST_NUMBER, -1)], ...], f.AtMost(MAX_FEED_TOKENS)]
NamedNodes = Annotated[tuple[f.Number, ...], f.AtMost(MAX_NAMED_NODES)]
PoolTokens = Annotated[int, f.Whole(MAX_POOL_TOKENS, 1)]


@f.message(112, kw_only=True)
class Join:
    """A head asks a stage to hold the layers from `first_layer` to before `end_layer` in a chain.

    source, target: The peers before and after it; the last stage has no target.
    window_pool_tokens: Pool size of layers with a sliding window of `window_tokens`.
    first_sequence: The number of the first sequence.
    """

    chain: ChainId
    target_digest: f.ContentDigest
    numerics: f.Name
    first_layer: Annotated[int, f.Whole(MAX_LAYERS)]
    end_layer: Annotated[int, f.Whole(MAX_LAYERS, 1)]
    layers: Annotated[int, f.Whole(MAX_LAYERS, 1)]
    pool_tokens: PoolTokens
    window_pool_tokens: Annotated[int, f.Whole(MAX_POOL_TOKENS, 1)] | None
    window_tokens: Annotated[int, f.Whole(MAX_POOL_TOKENS, 1)] | None
    first_sequence: f.Number
    source: f.PeerId
    target: f.PeerId | None
    addresses: f.Addresses


@f.message(113)
class Joined:
    """The stage is ready and connected to the next one."""

    chain: ChainId


@f.message(114)
class Follow:
    """A stage tells the next one that this stream carries the operations of a chain."""

    chain: ChainId


@f.message(115)
class OpenSequence:
    """Open a sequence with the next number. Sequences of one `scope` share prefixes."""

    sequence: f.Number
    sampling: Annotated[Sampling, f.Inline(Sampling)]
    prompt_tokens: Annotated[int, f.Whole(f.MAX_PROMPT_TOKENS)]
    scope: f.Name | None


@f.message(116)
class ReusePrefix:
    """Let an empty sequence reuse the cached prefix of these tokens, except the last one."""

    sequence: f.Number
    tokens: Annotated[tuple[f.Token, ...], f.AtMost(f.MAX_PROMPT_TOKENS)]


@f.message(117)
class ReserveRoom:
    """Reserve room for more tokens in a sequence."""

    sequence: f.Number
    tokens: Annotated[int, f.Whole(MAX_POOL_TOKENS)]


@dataclass(frozen=True, slots=True)
class FedRow:
    """Tokens of one sequence, their nodes, and their parents, -1 for the end of the prefix.

    The answer has choices after `tokens[scored_from:]`, with `candidates` each.
    """

    sequence: f.Number
    tokens: FedTokens
    nodes: FedNodes
    parents: FedParents
    scored_from: Annotated[int, f.Whole(MAX_FEED_TOKENS)]
    candidates: Annotated[int, f.Whole(MAX_CANDIDATES)]
    wants_nll: Annotated[bool, f.Flag()]


@f.message(118)
class FeedPass:
    """A pass over rows. `activation_bytes` follow in consecutive `Activations`.

    The first stage gets none.
    """

    number: f.Number
    rows: Annotated[tuple[FedRow, ...], f.AtMost(MAX_FEED_ROWS)]
    activation_bytes: Annotated[int, f.Whole(MAX_ACTIVATION_BYTES)]


@f.message(119)
class Activations:
    """The next `MAX_PART_BYTES`, or the rest, of the activations of the last feed."""

    data: Annotated[bytes, f.Bytes(MAX_PART_BYTES)]


@f.message(120)
class KeepPath:
    """Make a path of nodes part of a sequence's prefix."""

    sequence: f.Number
    path: NamedNodes


@f.message(121)
class PruneNodes:
    sequence: f.Number
    nodes: NamedNodes


@f.message(122)
class ReleaseSequence:
    sequence: f.Number


class RowFault(IntEnum):
    """The reason why a row has no choices: infinite logits, or an inapplicable constraint."""

    NONE = 0
    BAD_LOGITS = 1
    BAD_CONSTRAINT = 3


@dataclass(frozen=True, slots=True)
class TokenEstimate:
    token: f.Token
    probability: Annotated[float, f.Real(1.0)]


CandidateTokens = Annotated[tuple[TokenEstimate, ...], f.AtMost(MAX_CANDIDATES)]


@dataclass(frozen=True, slots=True)
class RowAnswer:
    """The tokens, margins (float64, little-endian) and candidates after each scored token of a row."""

    fault: Annotated[int, f.Whole(3)]
    tokens: FedTokens
    margins: Annotated[bytes, f.Bytes(MARGIN_BYTES * MAX_FEED_TOKENS)]
    candidates: Annotated[tuple[CandidateTokens, ...], f.AtMost(MAX_FEED_TOKENS)]
    nll: Annotated[float, f.Real(1e6)] | None


@f.message(123)
class Results:
    """The last stage's answer to a feed, with one element per row."""

    number: f.Number
    rows: Annotated[tuple[RowAnswer, ...], f.AtMost(MAX_FEED_ROWS)]


@dataclass(frozen=True, slots=True)
class FeedPart:
    """`tokens` tokens of a feed from `first` on, in the order of its rows."""

    feed: f.Number
    first: Annotated[int, f.Whole(MAX_FEED_TOKENS)]
    tokens: Annotated[int, f.Whole(MAX_FEED_TOKENS, 1)]


@f.message(124)
class Probe:
    """A head asks a stage for its inputs and outputs in parts of computed feeds.

    The seed, drawn after these passes, determines the projections of each token's vector.
    """

    seed: Annotated[bytes, f.exactly(PROBE_SEED_BYTES)]
    parts: Annotated[tuple[FeedPart, ...], f.AtMost(MAX_PROBE_PARTS)]


TokenProjections = Annotated[bytes, f.Bytes(PROJECTIONS * PROJECTION_BYTES * MAX_FEED_TOKENS)]


@dataclass(frozen=True, slots=True)
class PartTrace:
    """Projections of each token's vector (float32, little-endian), before and after the stage.

    Both are empty for a feed that was not kept, `entered` for the first stage, and `left` for the last.
    """

    entered: TokenProjections
    left: TokenProjections


@f.message(125)
class Probed:
    """The answer to a probe, with one trace per part."""

    parts: Annotated[tuple[PartTrace, ...], f.AtMost(MAX_PROBE_PARTS)]


@f.message(126)
class Passed:
    """A stage has forwarded or answered a feed after `held_us`.

    is_left_out: Reserved; false.
    came_us: Transfer time of the activations. None without any, or if the stage was not ready.
    """

    number: f.Number
    held_us: f.Microseconds
    is_left_out: Annotated[bool, f.Flag()]
    came_us: f.Microseconds | None = None


BookOperation = OpenSequence | ReusePrefix | ReserveRoom | KeepPath | PruneNodes | ReleaseSequence
StageMessage = (
    StreamMessage | Join | Joined | Follow | BookOperation | FeedPass | Activations | Results | Probe | Probed
    | Passed
)  # fmt: skip
