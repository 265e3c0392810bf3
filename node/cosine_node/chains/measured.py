"""What a head measures of stages and of the links between them, and whom it suspects. Pure. Times never go back.

Theory of operation
-------------------
Each stage tells the head, on the stream between them, when it has passed a pass on (`Passed`), and for how long it
held it. The head records the arrival by its clock, minus the distance of the stage. A stage can begin a pass once
the stage before has passed it on and its own previous pass has ended; the time from then on is its share
(`PassTimes`). Shares thus depend on the order of messages, not on the clocks of stages.

A stage that reports late lengthens its own share. One that reports early lengthens the share of the next stage; the
part of a share that a stage does not claim to have held is time *between* it and the stage before: a longer link,
or one of the two lies. A chain in which they are not neighbours avoids it in either case.

Medians of shares precede announced times (`StageSpeeds`, docs/decisions/0025), delays add up, and faults of stages
are remembered as `Suspicions`.
"""

import math
from collections import Counter, deque
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Final

from cosine_p2p.storage.memory import Remembered

REMEMBERED_PASSES: Final = 256
"""Bounds memory if nobody takes them."""
LATE_PASSES: Final = 4
"""A pass no longer waits for a report once this many later passes were answered."""


@dataclass(frozen=True, slots=True)
class EndedPass:
    """An answered pass: its tokens, the seconds at each stage, and the unexpected ones before each stage.

    `came_s` are the seconds that its activations took to arrive at each stage, if known.
    """

    tokens: int
    at_stage_s: tuple[float, ...]
    between_s: tuple[float, ...]
    came_s: tuple[float | None, ...]


@dataclass(frozen=True, slots=True)
class StuckPass:
    """The oldest pass under way: its tokens, the time of its last progress, and the stages that may hold it up."""

    tokens: int
    since_s: float
    suspects: tuple[int, ...]


@dataclass(slots=True)
class _Pass:
    """A pass that has not ended, and the reports on it by stage."""

    number: int
    tokens: int
    sent_s: float
    passed_s: list[float | None]
    held_s: list[float]
    came_s: list[float | None]
    answered_s: float | None = None


class PassTimes:
    """The passes of one chain. Times are of the head's clock."""

    def __init__(self, *, reports: Sequence[bool], ways_s: Sequence[float]) -> None:
        """`reports` is true for stages that report passes; `ways_s` are the one-way times to each stage."""
        self._reports = tuple(reports)
        self._ways_s = tuple(ways_s)
        self._passes: deque[_Pass] = deque()
        self._ended: deque[EndedPass] = deque(maxlen=REMEMBERED_PASSES)
        self._free_s = [-math.inf] * len(self._reports)

    def note_sent(self, number: int, *, tokens: int, now_s: float) -> None:
        """Record that a pass was sent, after all before it."""
        count = len(self._reports)
        self._passes.append(_Pass(number, tokens, now_s, [None] * count, [0.0] * count, [None] * count))

    def note_passed(
        self, stage: int, number: int, *, held_s: float, passed_s: float, came_s: float | None = None
    ) -> None:
        """Record a stage's first report on a pass under way."""
        known = self._find(number)
        if known is not None and known.passed_s[stage] is None:
            known.passed_s[stage], known.held_s[stage], known.came_s[stage] = passed_s, held_s, came_s
            self._end_known()

    def note_answered(self, number: int, *, answered_s: float) -> None:
        """Record that the last stage has answered a pass."""
        known = self._find(number)
        if known is not None:
            known.answered_s = answered_s
            self._end_known()

    def _find(self, number: int) -> _Pass | None:
        return next((one for one in self._passes if one.number == number), None)

    def take_ended(self) -> list[EndedPass]:
        """The passes that have ended since the last call, in their order."""
        ended = list(self._ended)
        self._ended.clear()
        return ended

    def _end_known(self) -> None:
        while self._passes and self._is_ended(self._passes[0]):
            self._ended.append(self._end(self._passes.popleft()))

    def _is_ended(self, one: _Pass) -> bool:
        if one.answered_s is None:
            return False
        is_awaited = any(
            reports and at_s is None for at_s, reports in zip(one.passed_s, self._reports, strict=True)
        )
        return not is_awaited or sum(other.answered_s is not None for other in self._passes) > LATE_PASSES

    def _end(self, one: _Pass) -> EndedPass:
        assert one.answered_s is not None
        at_s = one.answered_s
        passed_s = [at_s]
        # A stage without a report counts as having passed it on when the next one did.
        for told_s in reversed(one.passed_s[:-1]):
            at_s = at_s if told_s is None else told_s
            passed_s.append(at_s)
        at_stage_s, between_s = [], []
        before_s = one.sent_s
        for stage, at_s in enumerate(reversed(passed_s)):
            share_s = max(0.0, at_s - max(before_s + self._ways_s[stage], self._free_s[stage]))
            is_believed = self._reports[stage] and stage > 0
            at_stage_s.append(min(share_s, one.held_s[stage]) if is_believed else share_s)
            between_s.append(share_s - at_stage_s[-1])
            self._free_s[stage] = max(self._free_s[stage], at_s)
            before_s = at_s
        return EndedPass(one.tokens, tuple(at_stage_s), tuple(between_s), tuple(one.came_s))

    def stuck(self) -> StuckPass | None:
        """The oldest unanswered pass, if there is one."""
        position = next((index for index, one in enumerate(self._passes) if one.answered_s is None), None)
        if position is None:
            return None
        one, last_stage = self._passes[position], len(self._reports) - 1
        told = [stage for stage, at_s in enumerate(one.passed_s) if at_s is not None]
        last = max(told, default=-1)
        at = min(last + 1, last_stage)
        # It is at one of the stages up to the next that reports.
        until = next((stage for stage in range(at, last_stage) if self._reports[stage]), last_stage)
        since_s = max(one.sent_s, self._free_s[at], one.passed_s[last] or -math.inf if told else -math.inf)
        if position:
            since_s = max(since_s, self._passes[position - 1].answered_s or -math.inf)
        return StuckPass(one.tokens, since_s, tuple(range(max(0, last), until + 1)))


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
    """The times of one-token passes at stages and between them, which precede announced ones."""

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
        is_slow = len(speed.passes_s) >= FEW_PASSES and median(speed.passes_s) >= SLOWER * expected_s + LEAST_S
        speed.has_lied = speed.has_lied or is_slow
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
    """The bytes per second between stages that were neighbours in chains.

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
    """Suspicions against stages, each for `SUSPECTED_S`."""

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
