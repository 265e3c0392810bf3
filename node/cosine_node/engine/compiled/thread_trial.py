"""Whether a pass is faster in several threads, by the times of the last passes of its length."""

from typing import Final

from cosine_p2p.strategy.moving_average import moving_average

WEIGHT: Final = 0.1
"""Weight of the last pass of a length and a way: about ten count."""
FIRST_PASSES: Final = 6
"""Passes of a length that take turns at first."""
TRIED_EVERY: Final = 64
"""One pass in so many takes the slower way, since the machine's load changes."""


class ThreadTrial:
    """Chooses the number of threads of passes: all `threads`, or one.

    Threads wait for each other hundreds of times in a pass. Where another process takes the core of one, passes
    take longer than in a single thread.
    """

    def __init__(self, threads: int) -> None:
        self._threads = threads
        self._passes: dict[int, int] = {}
        self._seconds: dict[tuple[int, int], float] = {}

    def threads(self, tokens: int) -> int:
        """Return the number of threads of the next pass over so many tokens."""
        if self._threads == 1:
            return 1
        length = tokens.bit_length()
        passes = self._passes[length] = self._passes.get(length, 0) + 1
        if passes <= FIRST_PASSES:
            return self._threads if passes % 2 else 1
        several, one = self._seconds[length, self._threads], self._seconds[length, 1]
        return self._threads if (several <= one) == bool(passes % TRIED_EVERY) else 1

    def note(self, tokens: int, threads: int, *, elapsed_s: float) -> None:
        """Note a pass in so many threads."""
        key = tokens.bit_length(), threads
        # The first pass of a kind may compile kernels or wake threads.
        before_s = min(self._seconds.get(key, elapsed_s), 2 * elapsed_s)
        self._seconds[key] = moving_average(before_s, elapsed_s, weight=WEIGHT)
