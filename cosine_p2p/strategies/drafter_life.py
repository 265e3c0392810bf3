"""The life of a drafter in our strategy: a state machine, and the counters that belong to one drafter."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum, auto
from types import MappingProxyType
from typing import Final

from cosine_p2p.routing.base import DrafterFacts
from cosine_protocol.errors import LocalProtocolError

FIRST_BACKOFF_TOKENS: Final = 16
"""A choice: twice the tokens after which a drafter without news goes; each further backoff is twice as long."""


class DrafterState(Enum):
    """A drafter that is lost is forgotten, so that is no state."""

    DRAFTING = auto()
    ON_TRIAL = auto()
    """It drafts after a recall, and stays until it has drafted something new."""
    RELEASED = auto()
    BACKING_OFF = auto()
    """It is released for a while because it drafted nothing new."""
    RECALLED = auto()
    """It was asked to follow again and has not started yet."""


class DrafterEvent(Enum):
    """The first two come from the drafter, in any state; the others are decisions of ours."""

    STARTED = auto()
    DRAFTED = auto()
    """A token that nobody else had drafted before was there when its position was committed."""
    RELEASE = auto()
    BACK_OFF = auto()
    END_BACKOFF = auto()
    RECALL = auto()


# The only way from state to state; a decision that is missing here is a mistake of ours.
TRANSITIONS: Final[Mapping[DrafterState, Mapping[DrafterEvent, DrafterState]]] = MappingProxyType(
    {
        DrafterState.DRAFTING: {
            DrafterEvent.STARTED: DrafterState.DRAFTING,
            DrafterEvent.DRAFTED: DrafterState.DRAFTING,
            DrafterEvent.RELEASE: DrafterState.RELEASED,
            DrafterEvent.BACK_OFF: DrafterState.BACKING_OFF,
        },
        DrafterState.ON_TRIAL: {
            DrafterEvent.STARTED: DrafterState.ON_TRIAL,
            DrafterEvent.DRAFTED: DrafterState.DRAFTING,
            DrafterEvent.RELEASE: DrafterState.RELEASED,
            DrafterEvent.BACK_OFF: DrafterState.BACKING_OFF,
        },
        # Drafts sent before a release may come after it.
        DrafterState.RELEASED: {
            DrafterEvent.STARTED: DrafterState.DRAFTING,
            DrafterEvent.DRAFTED: DrafterState.RELEASED,
            DrafterEvent.RECALL: DrafterState.RECALLED,
        },
        DrafterState.BACKING_OFF: {
            DrafterEvent.STARTED: DrafterState.DRAFTING,
            DrafterEvent.DRAFTED: DrafterState.BACKING_OFF,
            DrafterEvent.END_BACKOFF: DrafterState.RELEASED,
        },
        DrafterState.RECALLED: {
            DrafterEvent.STARTED: DrafterState.ON_TRIAL,
            DrafterEvent.DRAFTED: DrafterState.RECALLED,
        },
    }
)


@dataclass(slots=True)
class Drafter:
    """One drafter of a request: where it stands, and since when it had nothing new to draft.

    `silent_tokens` counts committed tokens in a row where others drafted and it did not. `backoff_tokens` is the
    length of its last backoff, 0 since it last drafted; it ends when `backs_off_until` tokens are committed.
    """

    facts: DrafterFacts
    state: DrafterState = DrafterState.DRAFTING
    silent_tokens: int = 0
    backoff_tokens: int = 0
    backs_off_until: int = 0

    @property
    def is_active(self) -> bool:
        """True if it is asked to draft."""
        return self.state in (DrafterState.DRAFTING, DrafterState.ON_TRIAL)

    def on(self, event: DrafterEvent) -> None:
        """Go to the next state. Raises `LocalProtocolError` for a decision that its state does not allow."""
        if event not in TRANSITIONS[self.state]:
            raise LocalProtocolError(f"A drafter that is {self.state.name} does not {event.name}.")
        self.state = TRANSITIONS[self.state][event]

    def start(self, facts: DrafterFacts) -> None:
        """It follows the request from now on."""
        self.on(DrafterEvent.STARTED)
        self.facts, self.silent_tokens = facts, 0

    def back_off(self, seen_tokens: int) -> None:
        """Let it go for a while, each time for twice as long: a text may yet begin to repeat itself."""
        self.on(DrafterEvent.BACK_OFF)
        self.backoff_tokens = 2 * self.backoff_tokens or FIRST_BACKOFF_TOKENS
        self.backs_off_until = seen_tokens + self.backoff_tokens

    def note_committed(self, *, has_drafted: bool) -> None:
        """A token was committed where somebody had drafted: this drafter, or only others."""
        if has_drafted:
            self.on(DrafterEvent.DRAFTED)
            self.silent_tokens = self.backoff_tokens = 0
        elif self.is_active:
            self.silent_tokens += 1
