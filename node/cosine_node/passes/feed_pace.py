"""The start time of the next pass over a chain: once its slowest stage is free. Pure."""

import math
from collections import deque
from collections.abc import Sequence
from typing import Final

from cosine_engine.curve import CostCurve

REMEMBERED_S: Final = 10.0
"""Window whose minimum is the network time, which seldom changes. A queue of light passes lasts for seconds."""
QUEUED_PASSES: Final = 4
"""Successive passes that all wait too long show a queue, as in CoDel (RFC 8289). On a busy machine single passes of
3 ms wait for 5 to 20 ms; taken for slow stages, they let one begin every 46 ms."""
QUEUED_PERIODS: Final = 0.25
QUEUED_S: Final = 0.004
"""Too long, in units of the slowest stage's time, and at least. Stages take longer for a pass than announced, and a
queue builds up: with 2 ms more than 15 and a round trip of 60 ms, recorded texts come 1.03 times as fast as with a
queue of 1.5 passes."""
LAST_WEIGHT: Final = 0.1
"""Weight of the last answer in the rate of answers, and of this rate in the slowness after a pass that waited."""
DRAINED: Final = 1.1
"""Factor by which passes begin more slowly than answers come out of a queue, so that it becomes shorter."""
FASTER: Final = 0.98
"""Factor of the estimated slowness after a pass that did not wait."""
QUEUED_LINES: Final = 2
"""Assumed slowness of a line, which others use too."""
MIN_CHUNK_TOKENS: Final = 16
"""Shorter chunks of a prompt cost more overhead than they save."""
MAX_HALVINGS: Final = 16
"""More than between the longest and the shortest chunk."""
MAX_SLOWNESS: Final = 16.0
"""Bounds the effect of a temporary stall."""


class ChainPace:
    """Passes go down a chain at the rate of its slowest stage. Times are seconds of one clock.

    At most `most_under_way` run at once, and no more than fit into the time of one traversal and back: further
    passes would only wait, while their nodes could still be chosen better.

    Chunks of a prompt are pipelined. They take the time of one through the whole chain, and for each further one
    the time at the slowest stage or on a line; the chunk size minimises the sum.
    """

    def __init__(
        self,
        curves: Sequence[CostCurve],
        *,
        token_s: float = 0.0,
        most_under_way: int | None = None,
    ) -> None:
        """`curves` are the cost curves of the stages, `token_s` is a token's time on a line between two."""
        self._curves = curves
        self._token_s = token_s
        self._most_under_way = most_under_way
        # Times of ends and network times, both rising: all that may become the least of the window.
        self._ways: deque[tuple[float, float]] = deque()
        self._slowness = 1.0
        self._free_s = 0.0
        self._waited_s: deque[float] = deque(maxlen=QUEUED_PASSES)
        self._ended_s = math.inf
        self._gap = 1.0
        """The time between answers, in units of the slowest stage's time, while passes follow each other."""

    def replace_stages(self, curves: Sequence[CostCurve]) -> None:
        self._curves = curves
        self._ways.clear()
        self._waited_s.clear()
        self._ended_s, self._gap = math.inf, 1.0
        self._slowness = 1.0

    @property
    def slowest(self) -> CostCurve:
        return max(self._curves, key=lambda curve: curve.seconds(1))

    def chunk_tokens(self, unfed_tokens: int, *, most: int) -> int:
        """The number of tokens for the next pass of a prompt, at most `most`."""
        lines = len(self._curves) - 1

        def seconds(tokens: int) -> float:
            stage_s = max(curve.seconds(tokens) for curve in self._curves)
            first_s = self._stages_s(tokens) + lines * self._line_s(tokens)
            each_s = max(stage_s, self._line_s(tokens))
            if self._most_under_way is not None:
                # A further chunk starts after one has returned.
                each_s = max(each_s, (first_s + self._least_way_s) / self._most_under_way)
            return first_s + max(0, unfed_tokens / tokens - 1) * each_s

        halves = [most >> times for times in range(MAX_HALVINGS) if most >> times >= MIN_CHUNK_TOKENS]
        return min(halves, key=seconds, default=most)

    def period_s(self, tokens: int) -> float:
        """Seconds of a pass at the slowest stage, or on a line if that is longer."""
        stage_s = self._slowness * max(curve.seconds(tokens) for curve in self._curves)
        return max(stage_s, self._line_s(tokens))

    def _line_s(self, tokens: int) -> float:
        """Seconds of a pass on a line between two stages."""
        return tokens * self._token_s if len(self._curves) > 1 else 0.0

    def traversal_s(self, tokens: int) -> float:
        """Estimated seconds of a pass through all stages and back."""
        return self._least_way_s + self._stages_s(tokens)

    @property
    def _least_way_s(self) -> float:
        """The network time of a pass, 0 before any has ended."""
        return self._ways[0][1] if self._ways else 0.0

    def wait_s(self, now_s: float, *, under_way: int) -> float:
        """Seconds until the next pass may begin. Infinite if a running one has to end before."""
        if not under_way:
            # All stages are free, whatever was expected.
            return 0.0
        most = 1 + math.ceil(self.traversal_s(1) / self.period_s(1))
        if self._most_under_way is not None:
            most = min(most, self._most_under_way)
        return math.inf if under_way >= most else max(0.0, self._free_s - now_s)

    def note_begun(self, now_s: float, *, tokens: int) -> None:
        self._free_s = max(now_s, self._free_s) + self.period_s(tokens)

    def note_ended(self, now_s: float, *, begun_s: float, tokens: int) -> None:
        way_s = max(0.0, now_s - begun_s - self._stages_s(tokens))
        while self._ways and self._ways[-1][1] >= way_s:
            self._ways.pop()
        self._ways.append((now_s, way_s))
        while self._ways[0][0] < now_s - REMEMBERED_S:
            self._ways.popleft()
        # A later start would not shorten the time on lines.
        line_s = QUEUED_LINES * len(self._curves) * self._line_s(tokens)
        if begun_s < self._ended_s <= now_s:
            gap = (now_s - self._ended_s) / max(curve.seconds(tokens) for curve in self._curves)
            self._gap += LAST_WEIGHT * (gap - self._gap)
        self._ended_s = now_s
        self._waited_s.append(way_s - self._least_way_s - line_s)
        if min(self._waited_s) > max(QUEUED_S, QUEUED_PERIODS * self.period_s(tokens)):
            # Behind a queue, answers come at the rate of the slowest stage.
            slower = min(MAX_SLOWNESS, DRAINED * self._gap) - self._slowness
            self._slowness += LAST_WEIGHT * slower
        else:
            self._slowness *= FASTER
        self._slowness = max(1.0, self._slowness)

    def _stages_s(self, tokens: int) -> float:
        return sum(curve.seconds(tokens) for curve in self._curves)
