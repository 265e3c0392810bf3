"""When the next pass may begin: after the one before, or over a chain once its slowest stage is free. Pure."""

import math
from collections import deque
from collections.abc import Sequence
from typing import Final, Protocol

from cosine_node.engine.curve import CostCurve

REMEMBERED_PASSES: Final = 64
"""The way is as long as the fastest of so many passes says; it changes seldom."""
QUEUED_PERIODS: Final = 1.5
"""A pass that waited longer than the slowest stage takes for so many tells that stages are slower."""
SLOWER: Final = 1.1
"""So much slower stages are taken to be after a pass that waited."""
FASTER: Final = 0.98
"""What one pass that did not wait takes back of it."""
MAX_SLOWNESS: Final = 16.0
"""Bounds what stages that stand still for a moment do."""


class FeedPace(Protocol):
    """Says when passes begin. Times are seconds of one clock."""

    @property
    def is_ordered(self) -> bool:
        """True if passes end in the order in which they began, so that several may be under way."""
        ...

    def wait_s(self, now_s: float, *, under_way: int) -> float:
        """The time until the next pass may begin; infinite if one of those under way has to end before."""
        ...

    def note_begun(self, now_s: float, *, tokens: int) -> None: ...

    def note_ended(self, now_s: float, *, begun_s: float, tokens: int) -> None: ...


class OneAtATime:
    """A pass begins when the one before has ended."""

    is_ordered = False

    def wait_s(self, now_s: float, *, under_way: int) -> float:
        return math.inf if under_way else 0.0

    def note_begun(self, now_s: float, *, tokens: int) -> None:
        return

    def note_ended(self, now_s: float, *, begun_s: float, tokens: int) -> None:
        return


class ChainPace:
    """Passes follow each other down a chain as fast as its slowest stage takes them, and no faster.

    As many are under way as fit into the time that one takes through all stages and back: with more they would
    wait at a stage, where a better choice of nodes could not reach them. `most_under_way` bounds them further.
    """

    is_ordered = True

    def __init__(self, curves: Sequence[CostCurve], *, most_under_way: int | None = None) -> None:
        """`curves` are the costs of a pass at each stage."""
        self._curves = curves
        self._most_under_way = most_under_way
        self._ways_s: deque[float] = deque(maxlen=REMEMBERED_PASSES)
        self._slowness = 1.0
        self._free_s = 0.0

    def replace_stages(self, curves: Sequence[CostCurve]) -> None:
        """Go on over other stages."""
        self._curves = curves
        self._ways_s.clear()
        self._slowness = 1.0

    @property
    def slowest(self) -> CostCurve:
        """The cost of a pass at the slowest stage."""
        return max(self._curves, key=lambda curve: curve.seconds(1))

    def period_s(self, tokens: int) -> float:
        """The time of a pass at the slowest stage."""
        return self._slowness * max(curve.seconds(tokens) for curve in self._curves)

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
        is_queued = way_s - min(self._ways_s) > QUEUED_PERIODS * self.period_s(tokens)
        self._slowness = (
            min(MAX_SLOWNESS, self._slowness * SLOWER) if is_queued else max(1.0, self._slowness * FASTER)
        )

    def _stages_s(self, tokens: int) -> float:
        return sum(curve.seconds(tokens) for curve in self._curves)


class FeedChain(Protocol):
    """The chain of stages of a head, as its step loop needs it."""

    @property
    def pace(self) -> ChainPace: ...

    @property
    def stages(self) -> tuple[str, ...]:
        """The peer ids of those that compute now."""
        ...

    @property
    def why_not_judge(self) -> str | None:
        """Why nobody should be judged by what they compute; None where somebody may."""
        ...

    async def find(self) -> None:
        """Let the engine go on over another chain, with no sequence open. Raises `NoChain`."""
        ...

    def doubt(self) -> bool:
        """True if the chain is left, as it gave a row back without tokens; False where no other is there."""
        ...
