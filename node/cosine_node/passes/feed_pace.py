"""When the next pass may begin: after the one before, or over a chain once its slowest stage is free. Pure."""

import math
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final

from cosine_node.engine.curve import CostCurve

REMEMBERED_PASSES: Final = 64
"""The way is as long as the fastest of so many passes says; it changes seldom."""
QUEUED_PERIODS: Final = 1.5
"""A pass that waited longer than the slowest stage takes for so many tells that stages are slower."""
SLOWER: Final = 1.1
"""So much slower stages are taken to be after a pass that waited."""
FASTER: Final = 0.98
"""What one pass that did not wait takes back of it."""
QUEUED_LINES: Final = 2
"""A line takes so many times what it was measured to at least, as others use it."""
MIN_CHUNK_TOKENS: Final = 16
"""Shorter passes of a prompt cost more in what every pass costs than they save."""
MAX_HALVINGS: Final = 16
"""More than from the longest pass to the shortest."""
MAX_SLOWNESS: Final = 16.0
"""Bounds what stages that stand still for a moment do."""


class OneAtATime:
    """A pass begins when the one before has ended. Times are seconds of one clock."""

    is_ordered = False
    """True if passes end in the order in which they began, so that several may be under way."""

    def chunk_tokens(self, unfed_tokens: int, *, most: int) -> int:
        """How many tokens of a prompt, of which so many are unfed, a pass should take, at most so many."""
        return most

    def wait_s(self, now_s: float, *, under_way: int) -> float:
        """The time until the next pass may begin; infinite if one of those under way has to end before."""
        return math.inf if under_way else 0.0

    def note_begun(self, now_s: float, *, tokens: int) -> None:
        return

    def note_ended(self, now_s: float, *, begun_s: float, tokens: int) -> None:
        return


class ChainPace:
    """Passes follow each other down a chain as fast as its slowest stage takes them, and no faster.

    As many are under way as fit into the time that one takes through all stages and back: with more they would
    wait at a stage, where a better choice of nodes could not reach them. `most_under_way` bounds them further.

    A pass of a prompt is sent on while the next one is computed, so the time until the last one has come through is
    that of one all the way, and for each other one that of the slowest place, a stage or a line. Passes are as long
    as makes this least: the longer, the fewer they are, and the longer is one all the way.
    """

    is_ordered = True

    def __init__(
        self,
        curves: Sequence[CostCurve],
        *,
        token_s: Callable[[], float] = lambda: 0.0,
        most_under_way: int | None = None,
    ) -> None:
        """`curves` are the costs of a pass at each stage, `token_s` is a token's time on the slowest line."""
        self._curves = curves
        self._token_s = token_s
        self._most_under_way = most_under_way
        self._ways_s: deque[float] = deque(maxlen=REMEMBERED_PASSES)
        self._slowness = 1.0
        self._free_s = 0.0

    def replace_stages(self, curves: Sequence[CostCurve], *, token_s: Callable[[], float] = lambda: 0.0) -> None:
        """Go on over other stages."""
        self._curves = curves
        self._token_s = token_s
        self._ways_s.clear()
        self._slowness = 1.0

    @property
    def slowest(self) -> CostCurve:
        """The cost of a pass at the slowest stage."""
        return max(self._curves, key=lambda curve: curve.seconds(1))

    def chunk_tokens(self, unfed_tokens: int, *, most: int) -> int:
        lines = len(self._curves) - 1

        def seconds(tokens: int) -> float:
            stage_s = max(curve.seconds(tokens) for curve in self._curves)
            first_s = self._stages_s(tokens) + lines * self._line_s(tokens)
            each_s = max(stage_s, self._line_s(tokens))
            if self._most_under_way is not None:
                # The next one begins when one of so many is back.
                each_s = max(each_s, (first_s + min(self._ways_s, default=0.0)) / self._most_under_way)
            return first_s + max(0, unfed_tokens / tokens - 1) * each_s

        halves = [most >> times for times in range(MAX_HALVINGS) if most >> times >= MIN_CHUNK_TOKENS]
        return min(halves, key=seconds, default=most)

    def period_s(self, tokens: int) -> float:
        """The time of a pass at the slowest stage, or on the slowest line."""
        stage_s = self._slowness * max(curve.seconds(tokens) for curve in self._curves)
        return max(stage_s, self._line_s(tokens))

    def _line_s(self, tokens: int) -> float:
        """The time of a pass on the slowest line between two stages."""
        return tokens * self._token_s() if len(self._curves) > 1 else 0.0

    def traversal_s(self, tokens: int) -> float:
        """The time of a pass through all stages and back, as far as it is known."""
        return min(self._ways_s, default=0.0) + self._stages_s(tokens)

    def wait_s(self, now_s: float, *, under_way: int) -> float:
        if not under_way:
            # All stages are free, however long they were expected to take.
            return 0.0
        most = 1 + math.ceil(self.traversal_s(1) / self.period_s(1))
        if self._most_under_way is not None:
            most = min(most, self._most_under_way)
        return math.inf if under_way >= most else max(0.0, self._free_s - now_s)

    def note_begun(self, now_s: float, *, tokens: int) -> None:
        self._free_s = max(now_s, self._free_s) + self.period_s(tokens)

    def note_ended(self, now_s: float, *, begun_s: float, tokens: int) -> None:
        way_s = now_s - begun_s - self._stages_s(tokens)
        self._ways_s.append(max(0.0, way_s))
        # On a line it waits for nothing that a later beginning could help.
        line_s = QUEUED_LINES * len(self._curves) * self._line_s(tokens)
        is_queued = way_s - min(self._ways_s) - line_s > QUEUED_PERIODS * self.period_s(tokens)
        self._slowness = (
            min(MAX_SLOWNESS, self._slowness * SLOWER) if is_queued else max(1.0, self._slowness * FASTER)
        )

    def _stages_s(self, tokens: int) -> float:
        return sum(curve.seconds(tokens) for curve in self._curves)


FeedPace = OneAtATime | ChainPace
