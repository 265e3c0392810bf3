"""The requests of a verifier's step loop: a state machine that passes drive. Pure.

Theory of operation
-------------------
A request has known tokens, its prompt and its output so far, and a sequence in the engine's KV cache. Its stage
determines the tokens of the next pass:

- PREFILL: known tokens, in chunks. The pass over the last of them commits the first token and leads to DECODE.
- DECODE: the pending token, which is the last one committed, and nodes of the live tree below it. Where the
  target's choices follow a path of nodes, all of its tokens are committed.
- RECOMPUTE: after the pages of a decoding request were lost, its known tokens except the pending one. This commits
  nothing and leads back to DECODE.

The batch takes rows from a request (`prefill_row`, `decode_row`) and returns those that are not fed (`unfeed`).
Each row that was fed comes back to `take` with its result. Only `take` extends the output; its `Outcome` has the
consequences for the engine, the client and the verifier's places.

Over stages several rows of one request may be under way, and results arrive in the order of their passes. `fed`
therefore maps fed nodes to their names until they are committed or dropped, and names are never used twice.

A `VerifierRequest` generates. An audit (`AuditedStream`) has all its tokens from the start, stays in
RECOMPUTE, and commits nothing.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import ClassVar, Final, NamedTuple, Protocol

from cosine_engine.base import Row, RowResult
from cosine_engine.curve import CostCurve
from cosine_p2p.fair_places import User
from cosine_p2p.trust.audit_rule import ROUNDING
from cosine_protocol.codec import Message
from cosine_protocol.digests import request_digest
from cosine_protocol.request import Request
from cosine_protocol.stream import FinishReason

SCORED_TOKENS: Final = 64
"""Known tokens of one request that a pass scores over the whole vocabulary, which bounds memory. It is a quarter of
the size of a token tree."""


class ClientChannel(Protocol):
    """The channel to the client, for example `cosine_p2p.transport.channel.Channel`."""

    @property
    def peer_id(self) -> str: ...

    def post(self, message: Message) -> bool:
        """Queue a message without waiting; False if the client reads too slowly."""


class RequestStage(Enum):
    """The tokens of a request in the next pass."""

    PREFILL = auto()
    RECOMPUTE = auto()
    DECODE = auto()


@dataclass(slots=True)
class KvState:
    """The sequence of a request in the engine's KV cache.

    `scope` determines which requests share prefix pages (`cosine_engine.base.Engine.open`); `cached_tokens` is the
    length of the prefix that was found there.
    """

    sequence: int
    scope: str | None = None
    fed_tokens: int = 0
    has_pages: bool = False
    was_prefix_cache_tried: bool = False
    cached_tokens: int = 0


@dataclass(frozen=True, slots=True)
class PassShare:
    """A request's share in a pass of `load` requests that took `elapsed_s`.

    `nodes` is the number of drafted nodes in its row. It is charged `spent_s`, and a pass without drafts at the
    same load would have been `plain_s`; `curve` is the present cost of passes.
    """

    nodes: int
    load: int
    elapsed_s: float
    spent_s: float
    plain_s: float
    curve: CostCurve

    def longer_s(self, nodes: int) -> float:
        """The time by which the last `nodes` nodes lengthened the pass."""
        tokens = self.load + self.nodes
        return self.curve.seconds(tokens) - self.curve.seconds(tokens - nodes)


@dataclass(frozen=True, slots=True)
class Outcome:
    """The consequences of one result.

    The nodes `kept` become part of the sequence's prefix, `dropped` ones leave its tree. `known_tokens` counts
    known tokens that were fed, `authors` has the author of each committed token, and with `finish` the request is
    done.
    """

    kept: tuple[int, ...] = ()
    dropped: tuple[int, ...] = ()
    known_tokens: int = 0
    authors: bytes = b""
    messages: tuple[Message, ...] = ()
    finish: FinishReason | None = None


class RequestEnd(NamedTuple):
    """The end of a request: its name in counters, its line in the log, and any last message to the client."""

    name: str
    said: str
    message: Message | None = None
    audited_tokens: int = 0


@dataclass(slots=True, eq=False)
class ServedRequest(ABC):
    """One request between passes; equal only to itself.

    `output` holds its known output tokens, `admission` is its arrival number, `near_tie` the margin below which
    rounding may decide, and `user_name` distinguishes users of one client.

    `waited_passes` is the number of passes in a row without it. `has_crowd`: its user wants more than its share of
    a pass; `is_crowd`: this request exceeds that share. `awaits_choices`: a pass is under way over the last of its
    known tokens, or over tokens that are compared.
    """

    channel: ClientChannel
    number: int
    request: Request
    kv: KvState
    output: list[int]
    admission: int = 0
    near_tie: float = ROUNDING["float32"].near_tie
    user_name: bytes = b""
    stage: RequestStage = RequestStage.PREFILL
    is_cancelled: bool = False
    waited_passes: int = 0
    is_crowd: bool = False
    has_crowd: bool = False
    awaits_choices: bool = False
    user: User = field(init=False)
    d_0: bytes = field(init=False)

    gives_way: ClassVar[bool] = False
    """True for a kind that gets the rest of a pass after prompts, and whose place others may take."""

    def __post_init__(self) -> None:
        self.user = User(self.client, self.user_name)
        self.d_0 = request_digest(self.request)

    @abstractmethod
    def prefill_row(self, tokens: int) -> Row:
        """The row that feeds at most `tokens` of the next known tokens."""

    @abstractmethod
    def take(self, row: Row, result: RowResult, share: PassShare) -> Outcome:
        """Advance by the result of a row that was fed."""

    @abstractmethod
    def end(self, reason: FinishReason, stages: Sequence[str]) -> RequestEnd:
        """End for a reason; `stages` are the peer ids of those that computed it."""

    def post(self, message: Message) -> bool:
        """Queue a message to the client; False if it reads too slowly."""
        return self.channel.post(message)

    @property
    def client(self) -> str:
        """The peer id of the client."""
        return self.channel.peer_id

    @property
    def can_use_pass(self) -> bool:
        return not self.awaits_choices

    @property
    def may_reuse_prefix(self) -> bool:
        """True if the prefix cache may supply its tokens."""
        return True

    @property
    def is_pending_fed(self) -> bool:
        """True if a pass is under way over the pending token, so that only drafts can be fed."""
        return False

    @property
    def known_tokens(self) -> tuple[int, ...]:
        """All tokens to be prefilled: prompt and output, without the pending token if they are recomputed."""
        tokens = (*self.request.prompt, *self.output)
        return tokens[:-1] if self.stage is RequestStage.RECOMPUTE else tokens

    @property
    def unfed_tokens(self) -> int:
        """Tokens to be prefilled before it decodes; 0 once it does."""
        if self.stage is RequestStage.DECODE:
            return 0
        is_pending_apart = self.stage is RequestStage.RECOMPUTE
        return len(self.request.prompt) + len(self.output) - is_pending_apart - self.kv.fed_tokens

    def note_fed(self, tokens: int) -> None:
        """Count known tokens that are in the KV cache now."""
        self.kv.fed_tokens += tokens

    def unfeed(self, row: Row) -> None:
        """Undo a row that no pass has fed."""
        self.awaits_choices = False

    def preempt(self, sequence: int) -> None:
        """Start over with an empty sequence after a preemption."""
        self.kv = KvState(sequence, self.kv.scope)
        self.awaits_choices = False
