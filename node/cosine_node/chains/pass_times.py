"""The time that each stage of a chain adds to a pass, as measured by the head. Pure.

Theory of operation
-------------------
Each stage tells the head, on the stream between them, when it has passed a pass on (`Passed`), and for how long it
held it. The head records the arrival by its clock, minus the distance of the stage. A stage can begin a pass once
the stage before has passed it on and its own previous pass has ended; the time from then on is its share. Shares
thus depend on the order of messages, not on the clocks of stages.

A stage that reports late lengthens its own share. One that reports early lengthens the share of the next stage; the
part of a share that a stage does not claim to have held is time *between* it and the stage before: a longer link,
or one of the two lies. A chain in which they are not neighbours avoids it in either case.
"""

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

REMEMBERED_PASSES: Final = 256
"""Bounds memory if nobody takes them."""
LATE_PASSES: Final = 4
"""A pass no longer waits for a report once this many later passes were answered."""


@dataclass(frozen=True, slots=True)
class EndedPass:
    """An answered pass: its tokens, the seconds at each stage, and the unexpected ones before each stage."""

    tokens: int
    at_stage_s: tuple[float, ...]
    between_s: tuple[float, ...]


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
        self._passes.append(_Pass(number, tokens, now_s, [None] * count, [0.0] * count))

    def note_passed(self, stage: int, number: int, *, held_s: float, passed_s: float) -> None:
        """Record a stage's first report on a pass under way."""
        known = next((one for one in self._passes if one.number == number), None)
        if known is not None and known.passed_s[stage] is None:
            known.passed_s[stage] = passed_s
            known.held_s[stage] = held_s
            self._end_known()

    def tokens(self, number: int) -> int:
        """The tokens of a pass under way; 0 for any other."""
        return next((one.tokens for one in self._passes if one.number == number), 0)

    def note_answered(self, number: int, *, answered_s: float) -> None:
        """Record that the last stage has answered a pass."""
        known = next((one for one in self._passes if one.number == number), None)
        if known is not None:
            known.answered_s = answered_s
            self._end_known()

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
        has_told = all(
            not reports or at_s is not None for at_s, reports in zip(one.passed_s, self._reports, strict=True)
        )
        return has_told or sum(other.answered_s is not None for other in self._passes) > LATE_PASSES

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
        return EndedPass(one.tokens, tuple(at_stage_s), tuple(between_s))

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
            before = self._passes[position - 1]
            since_s = max(since_s, before.answered_s or -math.inf)
        return StuckPass(one.tokens, since_s, tuple(range(max(0, last), until + 1)))
