"""Which stages a head believes: those found right, those found wrong, and those that contradict each other. Pure.

A key costs nothing, so belief is earned as verifiers earn it (`cosine_p2p.trust.standing`): by checks in which
another holder of the same layers computed the same. Of a contradiction follows the first that applies:

- A third holder agrees with one side: the other one lied.
- One side has clearly more checks: it is believed.
- Neighbours that contradict each other over what went from one to the other are not put side by side again. Who is
  in such a dispute with two others lies: one liar is likelier than two.
- Else all of them are set aside, until one of them is found wrong elsewhere, or for `UNDECIDED_S`.

Of a side of several stages nobody knows which one lied: they are set aside together, and the other side is free.
"""

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Final

from cosine_node.chains.comparison import Contradiction
from cosine_p2p.storage.memory import Remembered
from cosine_p2p.trust.standing import Standings
from cosine_protocol.stage_messages import LayerRange

CHECK_SHARE: Final = 0.05
"""The least share of requests that are checked: as many as clients have audited."""
CLEARLY: Final = 4
"""Times as many checks, and at least so many: two levels of standing."""
UNDECIDED_S: Final = 24 * 3600.0
"""An honest stage is of use again within a day, a liar in the same dispute writes one wrong text a day."""
MAX_DISPUTES: Final = 256
"""Bounds memory."""


@dataclass(frozen=True, slots=True)
class Dispute:
    """Stages of which at least one lies, and nobody can tell which."""

    members: frozenset[str]
    layers: LayerRange
    is_link: bool = False

    def __str__(self) -> str:
        names = sorted(self.members)
        joined = names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
        return f"Stages {joined} disagree about layers {self.layers} of {self.layers.layers}"


class Disputes:
    """What a head has found of stages. Times never go back."""

    def __init__(self) -> None:
        self.standings = Standings()
        self._open = Remembered[Dispute, bool](MAX_DISPUTES, forgotten_s=UNDECIDED_S)

    def open(self, now_s: float) -> tuple[Dispute, ...]:
        """Disputes that nothing has decided."""
        return tuple(dispute for dispute, _ in self._open.items(now_s))

    def set_aside(self, now_s: float) -> frozenset[str]:
        """The stages that no chain goes over."""
        doubted = (dispute.members for dispute in self.open(now_s) if not dispute.is_link)
        return self.standings.rejected(now_s).union(*doubted)

    def apart(self, now_s: float) -> frozenset[frozenset[str]]:
        """Pairs that are no neighbours."""
        return frozenset(dispute.members for dispute in self.open(now_s) if dispute.is_link)

    def are_free(self, peer_ids: Collection[str], *, now_s: float) -> bool:
        """True if a chain may go over these stages, in this order."""
        pairs = zip(peer_ids, list(peer_ids)[1:], strict=False)
        apart = self.apart(now_s)
        return self.set_aside(now_s).isdisjoint(peer_ids) and not any({*pair} in apart for pair in pairs)

    def are_checked(self, peer_ids: Iterable[str], *, now_s: float) -> bool:
        """True if each of these was found right at least once."""
        return all(self.standings.checks(peer_id, now_s=now_s) for peer_id in peer_ids)

    def levels(self, peer_ids: Iterable[str], *, now_s: float) -> dict[str, int]:
        """The standing of stages by which chains are chosen: those with `CLEARLY` checks or more are alike."""
        levels = self.standings.levels(peer_ids, now_s=now_s)
        return {peer_id: min(level, CLEARLY.bit_length()) for peer_id, level in levels.items()}

    def check_chance(self, peer_ids: Iterable[str], *, now_s: float) -> float:
        """The chance that a request is checked which these have computed: the least checked of them decides."""
        chances = [self.standings.audit_chance(each, CHECK_SHARE, now_s=now_s) for each in peer_ids]
        return max(chances, default=0.0)

    def note_right(self, peer_id: str, *, now_s: float) -> None:
        """Another holder of its layers has computed the same."""
        self.standings.note_right(peer_id, now_s=now_s)

    def note_wrong(self, side: Collection[str], layers: LayerRange, *, now_s: float) -> None:
        """One of a side lied: the only one is not asked again, several are set aside."""
        if len(side) == 1:
            (peer_id,) = side
            self.standings.reject(peer_id, now_s=now_s)
            for dispute in self.open(now_s):
                if peer_id in dispute.members:
                    self._open.pop(dispute)
        else:
            self._open.note(Dispute(frozenset(side), layers), True, now_s)

    def judge(self, found: Contradiction, *, now_s: float) -> tuple[str, ...]:
        """Decide about a contradiction that no third stage has; the side that is not believed, if one is."""
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
