"""Measured pass times of stages, which precede announced ones (docs/decisions/0025), links and suspicions. Pure."""

from collections import Counter, deque
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from statistics import median
from typing import Final

from cosine_p2p.storage.memory import Remembered

MAX_STAGES: Final = 1024
"""Bounds memory."""
FORGOTTEN_S: Final = 3600.0
"""A slow machine or link may be idle within an hour; a liar costs one replacement in each."""
RECENT_PASSES: Final = 7
"""Passes whose median counts, so that one wait for another head's prompt has no effect."""
LOST_S: Final = 1.0
"""Limit of the total delay: about the time until another chain has fed the kept tokens. With less, chains are left
because of noise; with more, requests wait longer than for another chain."""
MOST_OF_ONE_S: Final = 0.4
"""Largest delay counted for one pass, so that no single one is enough."""
FEW_PASSES: Final = 4
SLOWER: Final = 2.0
LEAST_S: Final = 0.005
"""A stage has lied about its speed if the median of `FEW_PASSES` or more is `SLOWER` times plus `LEAST_S`
longer."""


@dataclass(slots=True)
class _Speed:
    passes_s: deque[float] = field(default_factory=lambda: deque(maxlen=RECENT_PASSES))
    lost_s: float = 0.0
    has_lied: bool = False


Measured = str | tuple[str, str]
"""A stage, by its peer id; or the link between two stages, beyond its expected time."""


class StageSpeeds:
    """The measured times of one-token passes at stages and between them. Times never go back."""

    def __init__(self) -> None:
        self._speeds = Remembered[Measured, _Speed](MAX_STAGES, forgotten_s=FORGOTTEN_S)

    def begin(self, what: Measured, *, now_s: float) -> None:
        """Begin a new chain: keep only the median of a stage's earlier passes, and no delays."""
        known = self._speeds.get(what, now_s)
        if known is not None:
            usual = deque([median(known.passes_s)], RECENT_PASSES)
            self._speeds.note(what, _Speed(usual, has_lied=known.has_lied), now_s)

    def note(self, what: Measured, *, pass_s: float, expected_s: float, now_s: float) -> None:
        """Record a pass; one that is faster than expected reduces the total delay."""
        speed = self._speeds.get(what, now_s) or _Speed()
        speed.passes_s.append(pass_s)
        speed.has_lied |= (
            len(speed.passes_s) >= FEW_PASSES and median(speed.passes_s) >= SLOWER * expected_s + LEAST_S
        )
        speed.lost_s = max(0.0, speed.lost_s + min(MOST_OF_ONE_S, pass_s - expected_s))
        self._speeds.note(what, speed, now_s)

    def pass_s(self, what: Measured, *, now_s: float) -> float | None:
        """The median of recent passes; None if none was measured."""
        speed = self._speeds.get(what, now_s)
        return median(speed.passes_s) if speed is not None else None

    def has_cost_much(self, what: Measured, *, now_s: float) -> bool:
        """True if the delays in the present chain add up to `LOST_S`."""
        speed = self._speeds.get(what, now_s)
        return speed is not None and speed.lost_s >= LOST_S

    def is_deceived(self, *, now_s: float) -> bool:
        """True if some stage was slower than it had announced."""
        return any(speed.has_lied for what, speed in self._speeds.items(now_s) if isinstance(what, str))

    def forgive(self, what: Measured, *, now_s: float) -> None:
        """Reset the delay, since there was no better stage."""
        speed = self._speeds.get(what, now_s)
        if speed is not None:
            speed.lost_s = 0.0


UNKNOWN_BYTES_PER_S: Final = 12.5e6
"""Assumed for an unmeasured link: 100 Mbit/s. On a slower one the first passes of a prompt are too long, on a
faster one too short."""
LEAST_BYTES: Final = 1 << 16
"""Shorter transfers say little about the speed."""
SAMPLES: Final = 9
"""Their median tolerates four disturbed passes; five show a change of the link."""
REMEMBERED_PAIRS: Final = 256
"""Bounds memory."""


class LinkSpeeds:
    """The links between stages that were neighbours in chains. Times never go back.

    Reports are trusted, since they only affect the length of prompt passes.
    """

    def __init__(self) -> None:
        self._samples = Remembered[tuple[str, str], deque[float]](REMEMBERED_PAIRS, forgotten_s=FORGOTTEN_S)

    def note(self, pair: tuple[str, str], *, size_bytes: int, seconds: float, now_s: float) -> None:
        """Record a transfer from one stage to the other."""
        if size_bytes < LEAST_BYTES or seconds <= 0:
            return
        samples = self._samples.get(pair, now_s) or deque(maxlen=SAMPLES)
        samples.append(size_bytes / seconds)
        self._samples.note(pair, samples, now_s=now_s)

    def bytes_per_s(self, pair: tuple[str, str], *, now_s: float) -> float:
        """The median speed of the link between two stages."""
        samples = self._samples.get(pair, now_s)
        return median(samples) if samples else UNKNOWN_BYTES_PER_S


SUSPECTED_S: Final = 600.0
"""Duration of a suspicion. A stage that always stalls costs one stuck pass (`STUCK_S`) in this time, 1/400 of it; a
machine that was busy for a moment is a last resort for as long."""
MAX_SUSPICIONS: Final = 256
"""Bounds memory."""
SHARED: Final = 2
"""Weight of one fault: all of it for a single suspect, half for each of two neighbours. The guilty one of a pair
weighs more after its next fault beside another neighbour."""


class Suspicions:
    """Suspicions against stages, each for `SUSPECTED_S`. Times never go back."""

    def __init__(self) -> None:
        self._noted: deque[tuple[float, str, int]] = deque(maxlen=MAX_SUSPICIONS)

    def note(self, peer_ids: Collection[str], *, now_s: float) -> None:
        """Record a fault of one of these stages."""
        for peer_id in peer_ids:
            self._noted.append((now_s, peer_id, SHARED if len(peer_ids) == 1 else SHARED // 2))

    def weights(self, *, now_s: float) -> Mapping[str, int]:
        """The total weight of suspicions by peer id."""
        found: Counter[str] = Counter()
        for at_s, peer_id, weight in self._noted:
            if now_s - at_s < SUSPECTED_S:
                found[peer_id] += weight
        return found
