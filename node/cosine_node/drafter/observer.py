"""Observers of drafted and committed texts, which do not affect drafting (`cosine_train.learning.streams`)."""

from typing import Any, Final, Protocol

from cosine_protocol.request import Request

NO_GUESS: Final = -1
"""Stands for a missing first choice of the drafter."""


class TextObserver(Protocol):
    def note(self, position: int, token: int, *, guess: int) -> None:
        """The target's token at an output position, and the drafter's first choice there."""


class DraftObserver(Protocol):
    """Watches a drafter's requests whose clients let it keep the text."""

    def follow(self, request: Request, d_0: bytes) -> TextObserver | None:
        """Return the observer of a new or resumed request. None to ignore it."""

    def leave(self, text: Any, *, now_s: float) -> None:
        """The request of an observer that `follow` returned has ended."""

    def tick(self, *, now_s: float) -> bool:
        """Called every few seconds. Returns True to be called even without requests."""

    def close(self) -> None:
        """Drafting ends."""
