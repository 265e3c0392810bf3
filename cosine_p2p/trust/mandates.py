"""The mandates of a client: who coordinates, and which verifiers recently used a mandate poorly."""

from collections.abc import Callable
from enum import StrEnum
from typing import Final

from cosine_p2p.storage.memory import Remembered
from cosine_p2p.trust.peer_memory import MAX_PEERS, PeerFailures
from cosine_protocol.identity import Identity

USELESS_TOKENS: Final = 512  # Several answers; if drafters are 300 ms away, some answers have no drafted token.


class Coordination(StrEnum):
    """The user's choice of the peer that coordinates the drafters of a request."""

    AUTO = "auto"  # The verifier if its distance makes that pay.
    CLIENT = "client"
    VERIFIER = "verifier"  # The verifier, unless it declines.


class Mandates:
    """The results of the mandates of a client with the key `identity`. `clock` returns Unix seconds."""

    def __init__(self, identity: Identity, clock: Callable[[], float]) -> None:
        self.identity = identity
        self.clock = clock
        self.failures = PeerFailures()
        self._undrafted = Remembered[str, int](MAX_PEERS)

    def note_use(self, delegate: str, *, tokens: int, drafted: int, now_s: float) -> None:
        """Avoid a delegate for a while if its drafters contribute nothing for `USELESS_TOKENS`."""
        if drafted:
            self.failures.note_served(delegate)
            self._undrafted.pop(delegate)
            return
        undrafted = (self._undrafted.get(delegate) or 0) + tokens
        self._undrafted.note(delegate, undrafted)
        if undrafted >= USELESS_TOKENS:
            self._undrafted.pop(delegate)
            self.failures.note_failed(delegate, now_s=now_s)
