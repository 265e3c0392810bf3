"""Counts of one session, and for people its reasons."""

from collections import deque
from dataclasses import dataclass, field
from typing import Final

MAX_WHY: Final = 64
"""Bounds memory: the first reasons that a session keeps for people."""
LATEST_WHY: Final = 16
"""Bounds memory: the latest reasons, which a display of progress shows."""


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
