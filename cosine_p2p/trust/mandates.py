"""The mandates a client gives: how it signs them, and which verifiers have made poor use of one lately."""

from collections.abc import Callable, Sequence
from enum import StrEnum
from typing import Final

from cosine_p2p.storage.memory import Remembered
from cosine_p2p.trust.peer_memory import MAX_PEERS, PeerFailures
from cosine_protocol.identity import Identity
from cosine_protocol.messages import SignedMandate
from cosine_protocol.statements import sign_mandate

USELESS_TOKENS: Final = 512
"""Several answers; where drafters are 300 ms away some answers hold no drafted token at all."""


class Coordination(StrEnum):
    """The peer that coordinates the drafters of a request, as a user wants it."""

    AUTO = "auto"
    """The verifier where its distance makes that pay."""
    CLIENT = "client"
    VERIFIER = "verifier"
    """The verifier, unless it declines."""


class Mandates:
    """Signs mandates as one client, which has the key `identity`. `clock` gives Unix seconds."""

    def __init__(self, identity: Identity, clock: Callable[[], float]) -> None:
        self.identity = identity
        self.clock = clock
        self.failures = PeerFailures()
        self._undrafted = Remembered[str, int](MAX_PEERS)

    def sign(
        self,
        *,
        d_0: bytes,
        delegate: str,
        drafters: Sequence[str],
        most_tokens: int,
        lifetime_s: float,
        prompt_window_tokens: int | None = None,
        shares_feedback: bool = False,
        pupil: str | None = None,
    ) -> SignedMandate:
        """A mandate from now on."""
        return sign_mandate(
            self.identity,
            d_0=d_0,
            delegate=delegate,
            drafters=drafters,
            most_tokens=most_tokens,
            issued_at_s=self.clock(),
            lifetime_s=lifetime_s,
            prompt_window_tokens=prompt_window_tokens,
            shares_feedback=shares_feedback,
            pupil=pupil,
        )

    def note_use(self, delegate: str, *, tokens: int, drafted: int, now_s: float) -> None:
        """Take in what a mandate brought; one whose drafters bring nothing for long is avoided for a while."""
        if drafted:
            self.failures.note_served(delegate)
            self._undrafted.pop(delegate)
            return
        undrafted = (self._undrafted.get(delegate) or 0) + tokens
        self._undrafted.note(delegate, undrafted)
        if undrafted >= USELESS_TOKENS:
            self._undrafted.pop(delegate)
            self.failures.note_failed(delegate, now_s=now_s)
