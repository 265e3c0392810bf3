"""The view of drafting from outside: which texts are followed, what was drafted, and what was committed.

Drafting is the same with and without an observer. `cosine_train.learning.streams` has one.
"""

from typing import Any, Final, Protocol

from cosine_protocol.request import Request

NO_GUESS: Final = -1
"""Where the drafter had no first choice in time."""


class TextObserver(Protocol):
    """Watches the text of one request."""

    def note(self, position: int, token: int, *, guess: int) -> None:
        """The target's token at an output position, and the drafter's first choice there."""


class DraftObserver(Protocol):
    """Watches a drafter's requests whose clients let it keep the text."""

    def follow(self, request: Request, d_0: bytes) -> TextObserver | None:
        """The observer of a request that is followed from now on, or again; None if it is of no interest."""

    def leave(self, text: Any, *, now_s: float) -> None:
        """The request of a text that `follow` gave is followed no longer."""

    def tick(self, *, now_s: float) -> bool:
        """Called every few seconds; True if it waits for something, although no request is followed."""

    def close(self) -> None:
        """Drafting ends."""
