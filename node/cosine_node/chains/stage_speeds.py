"""How long passes take at stages, as their head measured it, and who is suspected of a fault. Pure.

A record says what a pass takes; as with verifiers (docs/decisions/0025), what was measured counts before it.
"""

from collections import Counter, deque
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from statistics import median
from typing import Final

from cosine_p2p.storage.memory import Remembered

MAX_STAGES: Final = 1024
"""Bounds memory."""
FORGOTTEN_S: Final = 3600.0
"""A machine that was slow may be idle within an hour, and so may a line; who lies costs one replacement in each."""
RECENT_PASSES: Final = 7
"""Their median counts: a pass that waited for another head's prompt moves it by nothing."""
LOST_S: Final = 1.0
"""What delays may add up to: about as long as another chain takes until it has fed anew what requests hold. With
less a chain would be left for what a longer look shows to be nothing, with more requests wait longer than they
would for another chain."""
MOST_OF_ONE_S: Final = 0.4
"""What one pass counts for at most, so that no single one is enough."""
FEW_PASSES: Final = 4
SLOWER: Final = 2.0
LEAST_S: Final = 0.005
"""A stage has lied about its speed if so few passes took so many times what was expected, and so much longer."""


@dataclass(slots=True)
class _Speed:
    passes_s: deque[float] = field(default_factory=lambda: deque(maxlen=RECENT_PASSES))
    lost_s: float = 0.0
    has_lied: bool = False


Measured = str | tuple[str, str]
"""A stage, by its peer id; or what lies between one stage and the next beyond the way."""


class StageSpeeds:
    """The measured times of one-token passes at stages and between them. Times never go back."""

    def __init__(self) -> None:
        self._speeds = Remembered[Measured, _Speed](MAX_STAGES, forgotten_s=FORGOTTEN_S)

    def begin(self, what: Measured, *, now_s: float) -> None:
        """A stage is in a new chain: only what it does there counts, once it has done anything."""
        known = self._speeds.get(what, now_s)
        if known is not None:
            usual = deque([median(known.passes_s)], RECENT_PASSES)
            self._speeds.note(what, _Speed(usual, has_lied=known.has_lied), now_s)

    def note(self, what: Measured, *, pass_s: float, expected_s: float, now_s: float) -> None:
        """Take in a pass, which was expected to take so long; a stage that is faster pays for its delays."""
        speed = self._speeds.get(what, now_s) or _Speed()
        speed.passes_s.append(pass_s)
        speed.has_lied |= (
            len(speed.passes_s) >= FEW_PASSES and median(speed.passes_s) >= SLOWER * expected_s + LEAST_S
        )
        speed.lost_s = max(0.0, speed.lost_s + min(MOST_OF_ONE_S, pass_s - expected_s))
        self._speeds.note(what, speed, now_s)

    def pass_s(self, what: Measured, *, now_s: float) -> float | None:
        """The median of its latest passes; None for one that was not measured."""
        speed = self._speeds.get(what, now_s)
        return median(speed.passes_s) if speed is not None else None

    def has_cost_much(self, what: Measured, *, now_s: float) -> bool:
        """True if a stage's delays in its chain add up to `LOST_S`."""
        speed = self._speeds.get(what, now_s)
        return speed is not None and speed.lost_s >= LOST_S

    def is_deceived(self, *, now_s: float) -> bool:
        """True if some stage was not as fast as it had announced: then others' announcements count less."""
        return any(speed.has_lied for what, speed in self._speeds.items(now_s) if isinstance(what, str))

    def forgive(self, what: Measured, *, now_s: float) -> None:
        """Count delays anew, where there was no better stage."""
        speed = self._speeds.get(what, now_s)
        if speed is not None:
            speed.lost_s = 0.0


SUSPECTED_S: Final = 600.0
"""Whoever stalls whenever it is used costs one stuck pass in so long (`STUCK_S`, a four-hundredth), and with half
as long two. A machine that was busy for a moment serves this head only where others lack, for so long and no
longer."""
MAX_SUSPICIONS: Final = 256
"""Bounds memory."""
SHARED: Final = 2
"""What one fault weighs. A stage that alone can be at fault has all of it, each of two neighbours half: the guilty
one of a pair weighs more from its next fault on, beside another neighbour."""


class Suspicions:
    """What stages are suspected of, for `SUSPECTED_S`. Times never go back."""

    def __init__(self) -> None:
        self._noted: deque[tuple[float, str, int]] = deque(maxlen=MAX_SUSPICIONS)

    def note(self, peer_ids: Collection[str], *, now_s: float) -> None:
        """One of these stages is at fault."""
        for peer_id in peer_ids:
            self._noted.append((now_s, peer_id, SHARED if len(peer_ids) == 1 else SHARED // 2))

    def weights(self, *, now_s: float) -> Mapping[str, int]:
        """By peer id what a stage is suspected of."""
        found: Counter[str] = Counter()
        for at_s, peer_id, weight in self._noted:
            if now_s - at_s < SUSPECTED_S:
                found[peer_id] += weight
        return found
