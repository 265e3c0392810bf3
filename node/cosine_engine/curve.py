"""The cost of a pass as a function of its tokens."""

from bisect import bisect_left
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import accumulate, pairwise
from math import inf
from typing import Final

from cosine_engine.base import PREFIX, Engine, OutOfMemory, OutOfPages, Row
from cosine_protocol.errors import UsageError
from cosine_protocol.request import Sampling

MEASURED_TOKENS: Final = (1, 2, 4, 8, 16, 32, 64)
"""Tokens of measured passes, from plain decoding to a wide token tree; the curve between them is linear."""

CONTEXT_TOKENS: Final = 256
REPEATS: Final = 12
"""Passes of each length, as far as there is time."""

USUAL_TOKENS: Final = 16
"""Passes of up to this number of tokens are the usual ones of a request. They are repeated before longer ones:
their relation decides the drafts, and on a slow machine the longer ones would take most of the time.
"""

PROMPT_TOKENS: Final = (128, 256, 512, 1024, 2048)
"""Tokens of measured prompt passes, beyond a token tree, up to the load of a large card."""

LONGEST_PROMPT_PASS_S: Final = 0.25
"""Maximum time of a pass over prompts alone, for which new requests wait."""

CONTEXT_CHUNK_TOKENS: Final = 32
"""Tokens of the context that are fed between two checks of the time."""


@dataclass(frozen=True, slots=True)
class CostCurve:
    """Seconds of a pass by its tokens: points `(tokens, seconds)` in rising order of tokens.

    It is linear between points and beyond them, and constant below the first. Raises `UsageError` for points out of
    order or below zero.
    """

    points: tuple[tuple[int, float], ...]

    def __post_init__(self) -> None:
        tokens = [point[0] for point in self.points]
        if not tokens or tokens[0] < 1 or any(a >= b for a, b in pairwise(tokens)):
            raise UsageError("A cost curve needs points in rising order of tokens, from 1 token up.")
        if not all(seconds >= 0 for _, seconds in self.points):
            raise UsageError("A cost curve has no seconds below zero.")

    def seconds(self, tokens: int) -> float:
        """Return the cost of a pass over that many tokens, 0 for none."""
        if tokens <= 0:
            return 0.0
        points = self.points
        if len(points) == 1 or tokens <= points[0][0]:
            return points[0][1]
        right = min(bisect_left(points, tokens, key=lambda point: point[0]), len(points) - 1)
        (x0, y0), (x1, y1) = points[right - 1], points[right]
        return max(0.0, y0 + (y1 - y0) * (tokens - x0) / (x1 - x0))

    def at_share(self, share: float) -> "CostCurve":
        """Return the cost where passes take only `share` of the time."""
        return CostCurve(tuple((tokens, seconds / share) for tokens, seconds in self.points))

    def most_tokens(self, *, within_s: float, limit: int) -> int:
        """Return the maximum number of tokens, up to `limit`, of a pass of at most `within_s`; costs never fall."""
        least, most = 0, limit
        while least < most:
            middle = (least + most + 1) // 2
            if self.seconds(middle) <= within_s:
                least = middle
            else:
                most = middle - 1
        return least

    def tokens_within(self, passes: float, *, least: int, most: int) -> int:
        """Return the same from `least` to `most`, with the time of that many passes over one token."""
        return max(least, self.most_tokens(within_s=passes * self.seconds(1), limit=most))


LONGEST_CHAIN: Final = 15
"""Maximum drafts of one request in a pass: a longer chain adds almost nothing."""
BREAK_EVEN_STEPS: Final = 10
"""Halvings, for a precision of a thousandth."""


def break_even(curve: CostCurve, *, beside: float = 1.0) -> float:
    """Return the acceptance rate, at most 1, from which a pass over a chain of drafts pays.

    It pays if it yields more tokens a second than plain decoding, or than `beside` times that speed.
    """

    def pays(rate: float) -> bool:
        chain = accumulate(rate**depth for depth in range(LONGEST_CHAIN + 1))
        worth_s = (tokens * curve.seconds(1) / beside for tokens in chain)
        return any(worth > curve.seconds(tokens) for tokens, worth in enumerate(worth_s, 1) if tokens > 1)

    least, most = 0.0, 1.0
    for _ in range(BREAK_EVEN_STEPS):
        middle = (least + most) / 2
        least, most = (least, middle) if pays(middle) else (middle, most)
    return most


def rising(points: Sequence[tuple[int, float]]) -> tuple[tuple[int, float], ...]:
    """Return the points with every cost lowered to the least after it: fewer tokens never cost more.

    A length whose passes were all disturbed would otherwise make all longer ones look as expensive, and drafts
    useless.
    """
    least = [*accumulate((seconds for _, seconds in reversed(points)), min)]
    return tuple((tokens, seconds) for (tokens, _), seconds in zip(points, reversed(least), strict=True))


def measure_curve(
    engine: Engine,
    *,
    clock: Callable[[], float],
    prompt_tokens: Sequence[int] = (),
    budget_s: float = inf,
) -> CostCurve:
    """Return the least cost of passes over trees of `MEASURED_TOKENS` after `CONTEXT_TOKENS`, in rising order.

    Other load of the machine only adds to a pass, by chance more to one length than to another, while the relation
    of the lengths decides the drafts. The slowdown under load is measured while passes run.

    Half of a tree's tokens end a path, as in drafts: where paths are computed one by one, trees cost more than
    chains. `prompt_tokens` are longer passes, over a chain with its last token scored, in rising order; each is fed
    twice, until one takes longer than `LONGEST_PROMPT_PASS_S` or finds no memory.

    `clock` returns seconds. The first pass of a length warms up caches and kernels and does not count, unless it is
    the only one; `REPEATS` passes do, those of `USUAL_TOKENS` first. None is begun after `budget_s`, except for one
    of the shortest and one of the longest; a quarter of it is for the context, which may stay shorter. Lengths
    beyond the engine's context or free pool are left out. Raises `OutOfPages` or `UsageError` if not even the first
    fits.
    """
    room = min(engine.context_tokens, engine.free_tokens)
    context = max(1, min(CONTEXT_TOKENS, room // 2))
    sequence = engine.open(sampling=Sampling(), prompt_tokens=context)
    measured: dict[int, list[float]] = {}

    def is_over(share: float = 1.0) -> bool:
        return clock() - began_s >= share * budget_s

    def take(count: int, *, is_prompt: bool = False) -> float:
        row = Row.chain(sequence, [0] * count, scored_from=count - 1) if is_prompt else _tree(sequence, count)
        started_s = clock()
        engine.forward([row])
        measured.setdefault(count, []).append(clock() - started_s)
        engine.prune(sequence, row.nodes)
        return measured[count][-1]

    try:
        # Kernels may be compiled in the first pass.
        _feed(engine, sequence, 1, is_over=lambda: False)
        began_s = clock()
        # The context only needs to be attended to, which costs little: it takes at most a quarter of the time.
        _feed(engine, sequence, context - 1, is_over=lambda: is_over(0.25))
        first, *others = (count for count in MEASURED_TOKENS if context + count <= room)
        for count in (first, *reversed(others)):
            is_time_over = is_over()
            if len(measured) < 2 or not is_time_over:
                take(count)
            if not is_time_over:
                take(count)
        lengths = list(measured)
        last_s = measured[max(measured)][-1]
        with suppress(OutOfMemory, OutOfPages):
            for count in prompt_tokens:
                if context + count > room or last_s > LONGEST_PROMPT_PASS_S or is_over():
                    break
                take(count, is_prompt=True)
                last_s = take(count, is_prompt=True)
        usual = [count for count in lengths if count <= USUAL_TOKENS]
        longer = [count for count in lengths if count > USUAL_TOKENS]
        for count in (*usual * (REPEATS - 1), *longer * (REPEATS - 1)):
            if not is_over():
                take(count)
    finally:
        engine.release(sequence)
    return CostCurve(rising([(count, min(seconds[1:] or seconds)) for count, seconds in sorted(measured.items())]))


def _tree(sequence: int, tokens: int) -> Row:
    """Return a row of that many tokens, each with two children where possible."""
    parents = (PREFIX, *((name - 1) // 2 for name in range(1, tokens)))
    return Row(sequence, (0,) * tokens, tuple(range(tokens)), parents)


def _feed(engine: Engine, sequence: int, tokens: int, *, is_over: Callable[[], bool]) -> None:
    """Keep that many tokens in a sequence; after the deadline fewer, but at least some."""
    fed = 0
    while fed < tokens and not (fed and is_over()):
        chunk = min(CONTEXT_CHUNK_TOKENS, tokens - fed)
        engine.forward([Row.chain(sequence, [0] * chunk, scored_from=chunk - 1)])
        engine.keep(sequence, range(chunk))
        fed += chunk
