"""The cost of a pass as a function of its tokens."""

from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from statistics import median
from typing import Final

from cosine_node.engine.base import Engine, Row
from cosine_protocol.errors import UsageError
from cosine_protocol.request import Sampling

MEASURED_TOKENS: Final = (1, 2, 4, 8, 16, 32, 64)
"""A choice: from plain decoding to a wide token tree; between them the curve is taken to be straight."""


@dataclass(frozen=True, slots=True)
class CostCurve:
    """Seconds of a pass by its tokens: points `(tokens, seconds)` in rising order of tokens.

    Straight lines between points, the last line beyond them, constant below the first. Raises `UsageError`
    for points out of order or below zero.
    """

    points: tuple[tuple[int, float], ...]

    def __post_init__(self) -> None:
        tokens = [point[0] for point in self.points]
        if not tokens or tokens[0] < 1 or any(a >= b for a, b in pairwise(tokens)):
            raise UsageError("A cost curve needs points in rising order of tokens, from 1 token up.")
        if not all(seconds >= 0 for _, seconds in self.points):
            raise UsageError("A cost curve has no seconds below zero.")

    def seconds(self, tokens: int) -> float:
        """The cost of a pass over that many tokens; one over none costs nothing."""
        if tokens <= 0:
            return 0.0
        points = self.points
        if len(points) == 1 or tokens <= points[0][0]:
            return points[0][1]
        right = min(bisect_left(points, tokens, key=lambda point: point[0]), len(points) - 1)
        (x0, y0), (x1, y1) = points[right - 1], points[right]
        return max(0.0, y0 + (y1 - y0) * (tokens - x0) / (x1 - x0))


def rising(points: Sequence[tuple[int, float]]) -> tuple[tuple[int, float], ...]:
    """The points with every dip raised to the highest cost before it: more tokens never cost less."""
    highest = accumulate((seconds for _, seconds in points), max)
    return tuple((tokens, seconds) for (tokens, _), seconds in zip(points, highest, strict=True))


def measure_curve(
    engine: Engine,
    *,
    clock: Callable[[], float],
    tokens: Sequence[int] = MEASURED_TOKENS,
    context_tokens: int = 256,
    repeats: int = 5,
) -> CostCurve:
    """Median cost of passes over a chain of each length after `context_tokens` tokens, in rising order.

    `clock` returns seconds. Lengths the engine's context or free pool cannot hold are left out. Raises
    `OutOfPages` or `UsageError` if not even the first fits.
    """
    room = min(engine.context_tokens, engine.free_tokens)
    context = max(1, min(context_tokens, room // 2))
    sequence = engine.open(sampling=Sampling(), prompt_tokens=context)
    points = []
    try:
        engine.forward([Row.chain(sequence, [0] * context)])
        engine.keep(sequence, range(context))
        for count in sorted(count for count in set(tokens) if context + count <= room):
            row = Row.chain(sequence, [0] * count)
            seconds = []
            # The first pass of a length warms caches and kernels up and does not count.
            for _ in range(repeats + 1):
                started = clock()
                engine.forward([row])
                seconds.append(clock() - started)
                engine.prune(sequence, row.nodes)
            points.append((count, median(seconds[1:])))
    finally:
        engine.release(sequence)
    return CostCurve(rising(points))
