"""What a strategy is: events of one request in, actions out, time as an argument (DESIGN idea IV).

Authors are small numbers the session gives to drafters: 1 + the index in `Open.authors`.
"""

from dataclasses import dataclass
from typing import Protocol

from cosine_protocol.messages import Draft, PassStats
from cosine_protocol.nodes import Node


@dataclass(frozen=True, slots=True)
class Opened:
    """A verifier took the request. After a failover the tree at the verifier is empty again."""

    pass_s: float
    rtt_s: float


@dataclass(frozen=True, slots=True)
class DrafterStarted:
    """A drafter follows the request. `prompt_nll` is nats a token of its own model on the prompt."""

    author: int
    prompt_nll: float
    token_s: float
    rtt_s: float


@dataclass(frozen=True, slots=True)
class DrafterLost:
    """A drafter is gone or refused."""

    author: int


@dataclass(frozen=True, slots=True)
class Drafted:
    """A fragment whose signature was checked."""

    author: int
    draft: Draft


@dataclass(frozen=True, slots=True)
class Committed:
    """The verifier committed output tokens from `position` on; `digest` names the prefix after them."""

    position: int
    tokens: tuple[int, ...]
    digest: bytes
    stats: PassStats


@dataclass(frozen=True, slots=True)
class Tick:
    """The time a strategy asked for has come."""


Event = Opened | DrafterStarted | DrafterLost | Drafted | Committed | Tick


@dataclass(frozen=True, slots=True)
class SendTree:
    """Forward nodes to the verifier."""

    base: bytes
    position: int
    nodes: tuple[Node, ...]
    authors: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class SendVerify:
    """Stepped pacing: ask for one pass over these nodes."""

    base: bytes
    position: int
    nodes: tuple[Node, ...]
    authors: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class SendAssign:
    """Tell a drafter where and how to draft; `why` is for people."""

    author: int
    base: bytes
    position: int
    guess: tuple[int, ...]
    depth: int
    width: int
    window: int
    why: str


@dataclass(frozen=True, slots=True)
class SendAdvance:
    """Tell a drafter what was committed."""

    author: int
    position: int
    tokens: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ReleaseDrafter:
    """Let a drafter go; `why` is for people."""

    author: int
    why: str


@dataclass(frozen=True, slots=True)
class WakeAt:
    """Ask for a `Tick` at this time, unless a later `WakeAt` replaces it."""

    at_s: float


Action = SendTree | SendVerify | SendAssign | SendAdvance | ReleaseDrafter | WakeAt


class Strategy(Protocol):
    """Decides for one request. `is_stepped` picks the pacing, `wants_drafters` says whether any are asked."""

    name: str
    is_stepped: bool
    wants_drafters: bool

    def on(self, event: Event, now_s: float) -> list[Action]:
        """What to do about an event."""
        ...
