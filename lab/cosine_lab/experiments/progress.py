"""The progress of a long command: the measured cells, their number, and the expected remaining time."""

import sys
import time
from collections.abc import Callable
from typing import Final, TextIO

from cosine_p2p.dht.peer_clocks import span
from cosine_terminal.waiting import WaitingLine, columns_of

LINE_EVERY_S: Final = 10.0
"""Interval of lines where none can be rewritten, which shows progress without filling a log."""


class CellProgress:
    """Counts the cells of a measurement, assuming the average time of the earlier ones for each."""

    def __init__(self, name: str, cells: int, *, clock: Callable[[], float] = time.monotonic) -> None:
        """Create it; `name` is that of one cell: a request, a seed, a prompt."""
        self._name = name
        self._cells = cells
        self._clock = clock
        self._began_s = clock()
        self._done = 0

    def advance(self) -> str:
        """Count one more cell, and return the progress."""
        self._done += 1
        left = self._cells - self._done
        left_s = (self._clock() - self._began_s) / self._done * left
        return f"{self._name} {self._done} of {self._cells}, {f'about {span(left_s)} left' if left else 'the last'}"


class ProgressLine:
    """Shows the progress on a stream: on a terminal in one line that is rewritten, elsewhere at intervals."""

    def __init__(
        self, cells: CellProgress, *, stream: TextIO | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        stream = stream or sys.stderr
        self._cells = cells
        self._clock = clock
        self._line = WaitingLine(stream, clock=clock)
        self._every_s = 0.0 if columns_of(stream) else LINE_EVERY_S
        self._told_s = clock()

    def advance(self) -> None:
        """Count one more finished cell."""
        sentence, now_s = self._cells.advance(), self._clock()
        if now_s >= self._told_s + self._every_s:
            self._told_s = now_s
            self._line.say(sentence)

    def end(self) -> None:
        """Clear the terminal's line."""
        self._line.end()
