"""The mandates a client gives: who is to coordinate, and which verifiers have made poor use of one lately."""

from collections.abc import Callable
from enum import StrEnum
from typing import Final

from cosine_p2p.storage.memory import Remembered
from cosine_p2p.trust.peer_memory import MAX_PEERS, PeerFailures
from cosine_protocol.identity import Identity

USELESS_TOKENS: Final = 512  # Several answers; where drafters are 300 ms away some answers hold no drafted token.


class Coordination(StrEnum):
    """The peer that coordinates the drafters of a request, as a user wants it."""

    AUTO = "auto"  # The verifier where its distance makes that pay.
    CLIENT = "client"
    VERIFIER = "verifier"  # The verifier, unless it declines.


class Mandates:
    """What became of the mandates of one client, which has the key `identity`. `clock` gives Unix seconds."""

    def __init__(self, identity: Identity, clock: Callable[[], float]) -> None:
        self.identity = identity
        self.clock = clock
        self.failures = PeerFailures()
        self._undrafted = Remembered[str, int](MAX_PEERS)

    def note_use(self, delegate: str, *, tokens: int, drafted: int, now_s: float) -> None:
        """A delegate whose drafters bring nothing for `USELESS_TOKENS` is avoided for a while."""
        if drafted:
            self.failures.note_served(delegate)
            self._undrafted.pop(delegate)
            return
        undrafted = (self._undrafted.get(delegate) or 0) + tokens
        self._undrafted.note(delegate, undrafted)
        if undrafted >= USELESS_TOKENS:
            self._undrafted.pop(delegate)
            self.failures.note_failed(delegate, now_s=now_s)
