"""What a client's own checks have shown of verifiers, and what follows for whom it asks and audits. Pure.

A key costs nothing, so a verifier's standing is the number of its texts that this client had checked and found
right, by an audit or on probation. Three rules follow:

- *Whom to ask.* Those of the highest level reached come first, and speed decides among them. A level is twice the
checks of the one below, up to `PROVEN` checks.

- *Whom to audit.* A text of a verifier with k checks is audited with the chance `LIE_PRICE` / k, at least the
user's share. A liar is found after k / `LIE_PRICE` lies in the mean: each has cost `LIE_PRICE` right texts.

- *Whom to try.* While others have a higher level a newcomer only writes the beginning of a text that another has
written, one in `TRIAL_EVERY` texts, and the two must be equal. All newcomers share these places, so new keys do not
come sooner; after r verifiers were found wrong one key takes `TRIAL_EVERY` * (1 + r) texts for each check.

So a patient liar with k checks gets k / `LIE_PRICE` wrong texts through in the time of k * `TRIAL_EVERY` * (1 + r)
texts: with the first 4 %, with the fourth 1 %, and always less.
"""

from collections.abc import Iterable
from typing import Any, Final

from cosine_p2p.storage.memory import Remembered

PROVEN: Final = 64  # More checks give no more: at `LIE_PRICE` / 64 the chance of an audit is the usual share.
LIE_PRICE: Final = 3.2  # Right texts that a lie costs: 64 times the usual audits, so the rule ends in it.
TRIAL_EVERY: Final = 8  # An honest newcomer has eight checks after 64 texts; its trials cost a fiftieth.
RAREST_TRIAL: Final = 64  # Even after many lies somebody new is tried now and then, or no swarm could renew itself.

MAX_PEERS: Final = 1024  # Bounds memory and the file.
FORGOTTEN_S: Final = 30 * 24 * 3600.0  # A key that was not met for a month may have changed hands.


class Standings:
    """The standing of each verifier with one client. Times never go back."""

    def __init__(self) -> None:
        self._checks = Remembered[str, int](MAX_PEERS, forgotten_s=FORGOTTEN_S)
        # Apart, so that no flood of new keys makes anybody forget who was found wrong.
        self._rejected = Remembered[str, bool](MAX_PEERS, forgotten_s=FORGOTTEN_S)
        self._outvoted = Remembered[str, bool](MAX_PEERS, forgotten_s=FORGOTTEN_S)

    def note_right(self, peer_id: str, *, now_s: float) -> None:
        if self._rejected.get(peer_id, now_s) is None:
            self._checks.note(peer_id, min(PROVEN, self.checks(peer_id, now_s=now_s) + 1), now_s)

    def note_outvoted(self, peer_id: str, *, now_s: float) -> None:
        """Most others contradict it: it begins anew, which rounding may cause, and is rejected the second time."""
        self._checks.pop(peer_id)
        if self._outvoted.get(peer_id, now_s) is not None:
            self.reject(peer_id, now_s=now_s)
        self._outvoted.note(peer_id, True, now_s)

    def reject(self, peer_id: str, *, now_s: float) -> None:
        self._checks.pop(peer_id)
        self._rejected.note(peer_id, True, now_s)

    def rejected(self, now_s: float) -> frozenset[str]:
        return frozenset(peer_id for peer_id, _ in self._rejected.items(now_s))

    def checks(self, peer_id: str, *, now_s: float) -> int:
        return self._checks.get(peer_id, now_s) or 0

    def all_checks(self, now_s: float) -> dict[str, int]:
        return dict(self._checks.items(now_s))

    def levels(self, peer_ids: Iterable[str], *, now_s: float) -> dict[str, int]:
        """0 without checks, 1 with one, and one more for twice as many."""
        return {peer_id: self.checks(peer_id, now_s=now_s).bit_length() for peer_id in peer_ids}

    def audit_chance(self, peer_id: str, share: float, *, now_s: float) -> float:
        """The chance that a text is audited; 0 where the user's `share` is 0."""
        checks = self.checks(peer_id, now_s=now_s)
        return max(share, min(1.0, LIE_PRICE / checks if checks else 1.0)) if share else 0.0

    def trial_chance(self, now_s: float) -> float:
        return max(1 / RAREST_TRIAL, 1 / (TRIAL_EVERY * (1 + len(self._rejected.items(now_s)))))

    def state(self, now_s: float) -> list[list[Any]]:
        """Values of JSON: [peer id, checks, seconds since the latest]; -1 checks are a rejection."""
        known = self._checks.state(now_s, lambda peer_id, checks: [peer_id, checks])
        return known + self._rejected.state(now_s, lambda peer_id, _: [peer_id, -1])

    def restore(self, state: Any, *, now_s: float, away_s: float) -> None:
        """Take in the state of another process `away_s` ago, without what is broken."""

        def read(entry: list[Any]) -> tuple[str, int] | None:
            match entry:
                case [str(peer_id), int(checks)] if 0 < checks <= PROVEN:
                    return peer_id, checks
            return None

        def read_rejected(entry: list[Any]) -> tuple[str, bool] | None:
            match entry:
                case [str(peer_id), -1]:
                    return peer_id, True
            return None

        self._checks.restore(state, read, now_s=now_s, away_s=away_s)
        self._rejected.restore(state, read_rejected, now_s=now_s, away_s=away_s)
