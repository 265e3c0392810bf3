"""Counts of one session, and for people its reasons and whom it tried in vain."""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from cosine_protocol.errors import GenerationTimedOut, PeerError, PeerLost, RemoteProtocolError
from cosine_protocol.limits import HOME_AUTHOR

MAX_WHY: Final = 64
"""Bounds memory: the first reasons that a session keeps for people."""
LATEST_WHY: Final = 16
"""Bounds memory: the latest reasons, which a display of progress shows."""

PeerFailure = PeerError | PeerLost | RemoteProtocolError
"""What ends a verifier's part in a request."""


@dataclass(slots=True)
class SessionCounts:
    """Counts of one session, and for people which verifiers were tried in vain and why drafters were told what."""

    rounds: int = 0
    near_ties: int = 0
    accepted: int = 0
    home_tokens: int = 0
    tokens_by_verifier: dict[str, int] = field(default_factory=dict)
    tried: list[str] = field(default_factory=list)
    why: list[str] = field(default_factory=list)
    latest_why: deque[str] = field(default_factory=lambda: deque(maxlen=LATEST_WHY))
    decisions: int = 0

    def note_line(self, line: str) -> None:
        """Add a reason, of which the first ones and the latest are kept."""
        self.decisions += 1
        self.latest_why.append(line)
        if len(self.why) < MAX_WHY:
            self.why.append(line)

    def note_commit(self, peer_id: str, authors: bytes, *, near_ties: int) -> None:
        """Count a pass of a verifier and the authors of what it added to the stream."""
        self.rounds += 1
        self.near_ties += near_ties
        home_tokens = authors.count(HOME_AUTHOR)
        self.home_tokens += home_tokens
        self.accepted += sum(map(bool, authors)) - home_tokens
        self.tokens_by_verifier[peer_id] = self.tokens_by_verifier.get(peer_id, 0) + len(authors)

    def note_tried(self, peer_id: str, error: PeerFailure) -> None:
        """Keep how a verifier failed, in words."""
        match error:
            case PeerError():
                self.tried.append(f"{peer_id} refused: {error.message}")
            case PeerLost():
                self.tried.append(f"{peer_id} was lost: {error.reason}")
            case _:
                self.tried.append(f"{peer_id} broke the protocol: {error}")

    def nobody_left(self) -> str:
        """The sentence that says who was tried, when nobody is left."""
        if not self.tried:
            return "No verifier was found for the target; check --initial-peers and that a verifier has joined."
        return f"No verifier could finish the request. Tried: {'; '.join(dict.fromkeys(self.tried))}."


def timed_out(waited_for: Sequence[str]) -> GenerationTimedOut:
    """The error of a request that ran out of time, maybe while verifiers had not begun it."""
    if waited_for:
        return GenerationTimedOut(
            f"{waited_for[0]} had no place for the request in time; raise the timeout, or ask later."
        )
    return GenerationTimedOut("The generation took longer than its timeout; raise it or ask for less.")
