"""The standing of verifiers with a client, by its own checks. Pure.

A key costs nothing, so a verifier's standing is the number of its texts that this client checked and found correct,
by an audit or on probation. It has three uses:

- *Selection.* Verifiers of the highest level come first, ordered by speed. Each level takes twice the checks of the
one below, up to `PROVEN` checks.

- *Audits.* A text of a verifier with k checks is audited with probability `LIE_PRICE` / k, at least the user's
share. A liar is detected after k / `LIE_PRICE` lies on average: each has cost `LIE_PRICE` correct texts.

- *Trials.* While others have a higher level, a newcomer only writes the beginning of one in `TRIAL_EVERY` texts
that another verifier has written, and the two must be equal. All newcomers share these trials, so new keys gain
nothing; after r verifiers were found wrong a key needs `TRIAL_EVERY` * (1 + r) texts for each check.

So a patient liar with k checks gets k / `LIE_PRICE` wrong texts accepted in the time of k * `TRIAL_EVERY` * (1 + r)
texts: 4 % with the first key, 1 % with the fourth, and so on.
"""

from collections.abc import Iterable
from typing import Final

from cosine_p2p.storage.memory import Remembered

PROVEN: Final = 64  # The maximum of checks: at `LIE_PRICE` / 64 the probability of an audit is the usual share.
LIE_PRICE: Final = 3.2  # The correct texts that a lie costs: 64 times the usual share of audits.
TRIAL_EVERY: Final = 8  # An honest newcomer has eight checks after 64 texts; its trials cost 2 %.
RAREST_TRIAL: Final = 64  # The bound after many lies, so that a swarm can renew itself.

MAX_PEERS: Final = 1024  # Bounds memory and the file.
FORGOTTEN_S: Final = 30 * 24 * 3600.0  # A key that was not seen for a month may have changed hands.


class Standings:
    """The standing of each verifier with one client. Times are monotonic."""

    def __init__(self) -> None:
        self.right = Remembered[str, int](MAX_PEERS, forgotten_s=FORGOTTEN_S)
        # Separate, so that a flood of new keys does not evict the wrong ones.
        self.wrong = Remembered[str, bool](MAX_PEERS, forgotten_s=FORGOTTEN_S)
        self._outvoted = Remembered[str, bool](MAX_PEERS, forgotten_s=FORGOTTEN_S)
        self._convicted: frozenset[str] = frozenset()

    def note_right(self, peer_id: str, *, now_s: float) -> None:
        if self.wrong.get(peer_id, now_s) is None:
            self.right.note(peer_id, min(PROVEN, self.checks(peer_id, now_s=now_s) + 1), now_s)

    def note_outvoted(self, peer_id: str, *, now_s: float) -> None:
        """Reset a verifier that most others contradict, which rounding may cause; reject it the second time."""
        self.right.pop(peer_id)
        if self._outvoted.get(peer_id, now_s) is not None:
            self.reject(peer_id, now_s=now_s)
        self._outvoted.note(peer_id, True, now_s)

    def reject(self, peer_id: str, *, now_s: float) -> None:
        self.right.pop(peer_id)
        self.wrong.note(peer_id, True, now_s)

    def convict(self, peer_ids: Iterable[str]) -> None:
        """Reject verifiers for good, by evidence on this machine."""
        self._convicted |= frozenset(peer_ids)

    def rejected(self, now_s: float) -> frozenset[str]:
        return self._convicted | {peer_id for peer_id, _ in self.wrong.items(now_s)}

    def checks(self, peer_id: str, *, now_s: float) -> int:
        return self.right.get(peer_id, now_s) or 0

    def all_checks(self, now_s: float) -> dict[str, int]:
        return dict(self.right.items(now_s))

    def levels(self, peer_ids: Iterable[str], *, now_s: float) -> dict[str, int]:
        """The levels of peers: 0 without checks, 1 with one, and one more for each doubling."""
        return {peer_id: self.checks(peer_id, now_s=now_s).bit_length() for peer_id in peer_ids}

    def audit_chance(self, peer_id: str, share: float, *, now_s: float) -> float:
        """The probability that a text is audited; 0 if the user's `share` is 0."""
        checks = self.checks(peer_id, now_s=now_s)
        return max(share, min(1.0, LIE_PRICE / checks if checks else 1.0)) if share else 0.0

    def trial_chance(self, now_s: float) -> float:
        return max(1 / RAREST_TRIAL, 1 / (TRIAL_EVERY * (1 + len(self.wrong.items(now_s)))))
