"""The line on stderr that shows what a command waits for. It imports little, as it is shown before all else."""

import os
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Final, TextIO

CLEAR: Final = "\r\x1b[K"
"""Returns to the beginning of a terminal's line and clears it (ECMA-48: CR, EL)."""

LOOK_EVERY_S: Final = 0.1
"""Too short to be noticed."""


class WaitingLine:
    """A line that is rewritten on a terminal, with the seconds of a long stage; elsewhere one line per stage."""

    def __init__(self, stream: TextIO, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._stream = stream
        self._clock = clock
        self._columns = columns_of(stream)
        self._sentence = ""
        self._since_s = 0.0
        self._shown = ""
        self._is_over = False

    def say(self, sentence: str) -> None:
        """Show what the command waits for."""
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
        """Clear the terminal's line for other output; the next stage is shown below it."""
        if self._columns and not self._is_over:
            self._shown = ""
            clear(self._stream)

    def end(self) -> None:
        """Clear the terminal's line and show nothing more."""
        self.clear()
        self._is_over = True


@dataclass(slots=True)
class Stage:
    """The current work of a command; the sentence changes."""

    sentence: str

    def change(self, sentence: str) -> None:
        self.sentence = sentence


def columns_of(stream: TextIO) -> int:
    """Return the columns of a terminal, or 0 if the stream is no terminal or cannot rewrite a line."""
    if not stream.isatty() or os.environ.get("TERM") == "dumb":
        return 0
    try:
        return os.get_terminal_size(stream.fileno()).columns or 80
    except (OSError, ValueError):
        return 80


def clear(stream: TextIO) -> None:
    """Clear the current line if the stream is a terminal."""
    if columns_of(stream):
        stream.write(CLEAR)
        stream.flush()


@asynccontextmanager
async def telling_stages(line: WaitingLine, sentence: Callable[[], str]) -> AsyncIterator[None]:
    """Show the current sentence in this block, as it changes."""
    import asyncio

    async def follow() -> None:
        while True:
            line.say(sentence())
            await asyncio.sleep(LOOK_EVERY_S)

    following = asyncio.ensure_future(follow())
    # Show the first stage now, as the work may block the loop.
    line.say(sentence())
    try:
        yield
    finally:
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)


@asynccontextmanager
async def waiting_for(stage: Stage) -> AsyncIterator[None]:
    """Show on stderr what a command waits for in this block."""
    line = WaitingLine(sys.stderr)
    try:
        async with telling_stages(line, lambda: stage.sentence):
            yield
    finally:
        line.end()
