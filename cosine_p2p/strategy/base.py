"""The interface of strategies: events in, actions out. An author is 1 + the index in `Open.authors`."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from cosine_p2p.strategy.tree import Block
from cosine_protocol.draft import Draft, ReleaseReason
from cosine_protocol.verify import Pacing, PassStats


@dataclass(frozen=True, slots=True)
class VerifierOpened:
    """A verifier, in this node if `is_here`, took the request; its tree is empty."""

    pass_s: float
    rtt_s: float
    is_here: bool = False
    has_stages: bool = False


@dataclass(frozen=True, slots=True)
class DrafterStarted:
    """A drafter follows the request. `prompt_nll` is its NLL of the prompt in nats per token."""

    author: int
    prompt_nll: float
    token_s: float
    rtt_s: float


@dataclass(frozen=True, slots=True)
class DrafterLost:
    """A drafter was lost or refused."""

    author: int


@dataclass(frozen=True, slots=True)
class FragmentReceived:
    """A fragment whose signature was checked, with the digests of its nodes, if they are known."""

    author: int
    draft: Draft
    digests: tuple[bytes, ...] = ()


@dataclass(frozen=True, slots=True)
class Committed:
    """The verifier committed `tokens` from `position` on, each by one of `authors`, if they are known."""

    position: int
    tokens: tuple[int, ...]
    stats: PassStats
    authors: bytes = b""


@dataclass(frozen=True, slots=True)
class Tick:
    """The time of the last `WakeAt` has come."""


@dataclass(frozen=True, slots=True)
class DraftersAllowed:
    """At most `count` drafters may draft from now on; only for kinds with `drafter_counts`."""

    count: int


Event = VerifierOpened | DrafterStarted | DrafterLost | DraftersAllowed | FragmentReceived | Committed | Tick


@dataclass(frozen=True, slots=True)
class SendTree:
    """Forward drafts to the verifier of the request."""

    block: Block


@dataclass(frozen=True, slots=True)
class SendAssign:
    """Assign a drafter a place to draft; it drops paths less likely than one in `rarity`. `why` is for people."""

    author: int
    base: bytes
    position: int
    depth: int
    width: int
    window: int
    why: str
    rarity: int | None = None


@dataclass(frozen=True, slots=True)
class SendAdvance:
    """Send a drafter committed tokens."""

    author: int
    position: int
    tokens: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ReleaseDrafter:
    """Release a drafter; `why` is for people, `reason` for the drafter."""

    author: int
    why: str
    reason: ReleaseReason = ReleaseReason.OTHERS_BETTER


@dataclass(frozen=True, slots=True)
class RecallDrafter:
    """Ask a released drafter to follow again; `DrafterStarted` comes once it has read the committed tokens."""

    author: int
    why: str


@dataclass(frozen=True, slots=True)
class WakeAt:
    """Request a `Tick` at this time; a later `WakeAt` replaces it."""

    at_s: float


Action = SendTree | SendAssign | SendAdvance | ReleaseDrafter | RecallDrafter | WakeAt


class Strategy(Protocol):
    """Decides for one request."""

    def on(self, event: Event, now_s: float) -> list[Action]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class StrategyKind:
    """A kind of strategy. `make` returns the strategy of a request, given its digest.

    `drafter_counts` are the numbers of drafters to compare (`cosine_p2p.strategy.speed_trial`); the first is the
    default. `is_delegable`: a coordinating verifier can use it.
    """

    name: str
    make: Callable[[bytes], Strategy]
    wants_drafters: bool = True
    drafter_counts: tuple[int, ...] = ()
    is_delegable: bool = False

    @property
    def pacing(self) -> Pacing:
        """The pacing of its verifiers; without drafters they do not draft either."""
        return Pacing.FREE if self.wants_drafters else Pacing.PLAIN
