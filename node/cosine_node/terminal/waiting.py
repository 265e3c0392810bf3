"""The line on stderr that says what a command waits for. Imports little: it is there before all else."""

import os
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Final, TextIO

CLEAR: Final = "\r\x1b[K"
"""To the beginning of a terminal's line, which is emptied (ECMA-48: CR, EL)."""

LOOK_EVERY_S: Final = 0.1
"""A person sees no delay, and a look costs nothing."""


class WaitingLine:
    """On a terminal one line that is rewritten, with the seconds of a long stage; elsewhere a line a stage."""

    def __init__(self, stream: TextIO, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._stream = stream
        self._clock = clock
        self._columns = columns_of(stream)
        self._sentence = ""
        self._since_s = 0.0
        self._shown = ""
        self._is_over = False

    def say(self, sentence: str) -> None:
        """Tell what is waited for now."""
        if self._is_over:
            return
        now_s = self._clock()
        if sentence != self._sentence:
            self._sentence, self._since_s = sentence, now_s
        shown = f"{sentence} ..."
        if self._columns:
            waited_s = now_s - self._since_s
            # A shorter wait needs no count.
            seconds = f" {waited_s:.0f} s" if waited_s >= 1.0 else ""
            shown = f"{shown}{seconds}"[: self._columns - 1]
        if shown != self._shown:
            self._shown = shown
            self._stream.write(CLEAR + shown if self._columns else shown + "\n")
            self._stream.flush()

    def clear(self) -> None:
        """Empty the terminal's line for what is written next; the next stage, or the same, comes below that."""
        if self._columns and not self._is_over:
            self._shown = ""
            clear(self._stream)

    def end(self) -> None:
        """Empty the terminal's line; from now on nothing is told."""
        self.clear()
        self._is_over = True


@dataclass(slots=True)
class Stage:
    """What is waited for now, in words that change."""

    sentence: str

    def change(self, sentence: str) -> None:
        self.sentence = sentence


def columns_of(stream: TextIO) -> int:
    """The columns of the terminal that a stream is; 0 if it is none, or one that cannot rewrite a line."""
    if not stream.isatty() or os.environ.get("TERM") == "dumb":
        return 0
    try:
        return os.get_terminal_size(stream.fileno()).columns or 80
    except (OSError, ValueError):
        return 80


def clear(stream: TextIO) -> None:
    """Empty the line of a terminal on which something may be waited for."""
    if columns_of(stream):
        stream.write(CLEAR)
        stream.flush()


@asynccontextmanager
async def telling_stages(line: WaitingLine, sentence: Callable[[], str]) -> AsyncIterator[None]:
    """Keep telling in this block what is waited for, as it changes."""
    import asyncio

    async def follow() -> None:
        while True:
            line.say(sentence())
            await asyncio.sleep(LOOK_EVERY_S)

    following = asyncio.ensure_future(follow())
    # The first stage is told before the work begins, which may hold up the loop.
    line.say(sentence())
    try:
        yield
    finally:
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)
