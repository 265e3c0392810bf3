"""A head's trust in stages: those found right, those found wrong, and those in a dispute. Pure.

Keys are free, so stages earn trust as verifiers do (`cosine_p2p.trust.standing`): by checks in which another holder
of the same layers computed the same. The first rule that applies decides a contradiction:

- A third holder agrees with one side: the other side lied.
- One side has clearly more checks: it is trusted.
- Neighbours that disagree about what went between them are kept apart. A stage in such a dispute with two others
  lied, since one liar is likelier than two.
- Otherwise all are set aside, until one of them is found wrong elsewhere, or for `UNDECIDED_S`.

A wrong side of several stages is set aside as a whole, since it is unknown which one lied.
"""

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Final

from cosine_node.chains.traces import Contradiction
from cosine_p2p.storage.memory import Remembered
from cosine_p2p.trust.standing import Standings
from cosine_protocol.stage import LayerRange

CHECK_SHARE: Final = 0.05
"""Lower bound of the share of checked requests, equal to that of clients' audits."""
CLEARLY: Final = 4
"""Factor and least number of checks by which one side is trusted: two levels of standing."""
UNDECIDED_S: Final = 24 * 3600.0
"""An honest stage is used again within a day; a liar in the same dispute writes one wrong text a day."""
MAX_DISPUTES: Final = 256
"""Bounds memory."""


@dataclass(frozen=True, slots=True)
class Dispute:
    """Stages of which at least one lies, without proof which."""

    members: frozenset[str]
    layers: LayerRange
    is_link: bool = False

    def __str__(self) -> str:
        names = sorted(self.members)
        joined = names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
        return f"Stages {joined} disagree about layers {self.layers} of {self.layers.layers}"


class Disputes:
    """A head's findings about stages. Times never go back."""

    def __init__(self) -> None:
        self.standings = Standings()
        self._open = Remembered[Dispute, bool](MAX_DISPUTES, forgotten_s=UNDECIDED_S)

    def open(self, now_s: float) -> tuple[Dispute, ...]:
        """The undecided disputes."""
        return tuple(dispute for dispute, _ in self._open.items(now_s))

    def set_aside(self, now_s: float) -> frozenset[str]:
        """The stages that no chain may use."""
        doubted = (dispute.members for dispute in self.open(now_s) if not dispute.is_link)
        return self.standings.rejected(now_s).union(*doubted)

    def apart(self, now_s: float) -> frozenset[frozenset[str]]:
        """Pairs that must not be neighbours."""
        return frozenset(dispute.members for dispute in self.open(now_s) if dispute.is_link)

    def are_free(self, peer_ids: Collection[str], *, now_s: float) -> bool:
        """True if a chain may use these stages in this order."""
        pairs = zip(peer_ids, list(peer_ids)[1:], strict=False)
        apart = self.apart(now_s)
        return self.set_aside(now_s).isdisjoint(peer_ids) and not any({*pair} in apart for pair in pairs)

    def are_checked(self, peer_ids: Iterable[str], *, now_s: float) -> bool:
        """True if each of these was found right at least once."""
        return all(self.standings.checks(peer_id, now_s=now_s) for peer_id in peer_ids)

    def levels(self, peer_ids: Iterable[str], *, now_s: float) -> dict[str, int]:
        """The standing of stages for the choice of chains; `CLEARLY` checks or more count the same."""
        levels = self.standings.levels(peer_ids, now_s=now_s)
        return {peer_id: min(level, CLEARLY.bit_length()) for peer_id, level in levels.items()}

    def check_chance(self, peer_ids: Iterable[str], *, now_s: float) -> float:
        """The chance that a request over these stages is checked; the least checked stage decides."""
        chances = [self.standings.audit_chance(each, CHECK_SHARE, now_s=now_s) for each in peer_ids]
        return max(chances, default=0.0)

    def note_right(self, peer_id: str, *, now_s: float) -> None:
        """Record that another holder of its layers has computed the same."""
        self.standings.note_right(peer_id, now_s=now_s)

    def note_wrong(self, side: Collection[str], layers: LayerRange, *, now_s: float) -> None:
        """Record that a side lied: a single stage is rejected, several are set aside."""
        if len(side) == 1:
            (peer_id,) = side
            self.standings.reject(peer_id, now_s=now_s)
            for dispute in self.open(now_s):
                if peer_id in dispute.members:
                    self._open.pop(dispute)
        else:
            self._open.note(Dispute(frozenset(side), layers), True, now_s)

    def judge(self, found: Contradiction, *, now_s: float) -> tuple[str, ...]:
        """Judge a contradiction that no third stage has decided; return the side that lied, or () if undecided."""
        for side, other in ((found.ones, found.others), (found.others, found.ones)):
            least = min(self.standings.checks(each, now_s=now_s) for each in side)
            most = max(self.standings.checks(each, now_s=now_s) for each in other)
            if least >= CLEARLY * max(1, most):
                self.note_wrong(other, found.layers, now_s=now_s)
                return other
        if found.is_link:
            for peer_id in found.members:
                if any(pair & found.members == {peer_id} for pair in self.apart(now_s)):
                    self.note_wrong((peer_id,), found.layers, now_s=now_s)
                    return (peer_id,)
        self._open.note(Dispute(found.members, found.layers, found.is_link), True, now_s)
        return ()
