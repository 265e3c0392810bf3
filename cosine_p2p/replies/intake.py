"""Incremental input for readers, which are generators. Pure.

A reader yields parts of the reply as soon as they are certain, and None to wait for more text; the parts depend on
the text alone, not on the pieces in which it arrives.
"""

import json
import re
from collections.abc import Callable, Generator, Iterable, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from functools import lru_cache
from typing import Final, TypeVar

from cosine_p2p.replies.parts import Part

_T = TypeVar("_T")
Reading = Generator[Part | None, None, _T]  # Yields parts, and None to wait for more text; returns a result.
Pieces = Generator[str | None, None, _T]  # Yields text, and None to wait for more text.

BLANK: Final = " \t\r\n"
_OUTSIDE: Final = frozenset('{}[]":,-+.0123456789eE' + "truefalsn" + BLANK)  # The letters outside of strings.


class Intake:
    """Received text that was not read yet. `at` is the position in all text; `is_over`: no more will arrive."""

    def __init__(self) -> None:
        self._text = ""
        self._begin = 0  # The position of its first letter.
        self.at = 0
        self.is_over = False

    def add(self, text: str) -> None:
        self._text += text

    def forget(self) -> None:
        """Drop text that was read, in amortised constant time per letter."""
        if 2 * self._read > len(self._text):
            self._text, self._begin = self._text[self._read :], self.at

    @property
    def _read(self) -> int:
        return self.at - self._begin

    def skip(self, count: int) -> None:
        self.at += count

    def before(self, marks: Sequence[str]) -> tuple[str, str]:
        """Take the text that certainly precedes the first of some marks; return it and that mark, if found."""
        begin = self._read
        found = _any_of(tuple(marks)).search(self._text, begin) if marks else None
        end, mark = (found.start(), found[0]) if found else (len(self._text), "")
        if not found and not self.is_over:
            last = self._text[max(begin, end - max(map(len, marks), default=0)) :]
            begins = (mark[:count] for mark in marks for count in range(1, len(mark)))
            end -= max((len(each) for each in begins if last.endswith(each)), default=0)
        self.at += end - begin
        return self._text[begin:end], mark

    def sees(self, mark: str) -> Generator[None, None, bool]:
        """Return whether the text continues with a mark, which is not taken."""
        while not self._text.startswith(mark, self._read):
            if self.is_over or not mark.startswith(self._text[self._read : self._read + len(mark)]):
                return False
            yield None
        return True

    def takes(self, mark: str) -> Generator[None, None, bool]:
        """Take a mark if the text continues with it; false for an empty one."""
        if not mark or not (yield from self.sees(mark)):
            return False
        self.at += len(mark)
        return True

    def taken_of(self, marks: Iterable[str]) -> Generator[None, None, str]:
        """Take and return the first of some marks with which the text continues; empty for none."""
        for mark in marks:
            if (yield from self.takes(mark)):
                return mark
        return ""

    def blank(self) -> Generator[None, None, None]:
        """Take white space."""
        while (letter := (yield from self.next_letter())) and letter in BLANK:
            self.at += 1

    def until(self, marks: Sequence[str], *, most: int) -> Generator[None, None, tuple[str, str]]:
        """Take the text before the first of some marks; return both, with no mark if it is not within `most`."""
        text = ""
        while True:
            more, mark = self.before(marks)
            text += more
            if mark or self.is_over or len(text) > most:
                return (text, mark) if len(text) <= most else (text, "")
            yield None

    def next_letter(self) -> Generator[None, None, str]:
        """Return the next letter without taking it; empty at the end."""
        while self._read >= len(self._text):
            if self.is_over:
                return ""
            yield None
        return self._text[self._read]

    def json_value(self) -> Pieces[bool]:
        """Yield the text of a JSON value; return false if the text ends before the value does."""
        scan = _JsonScan()
        while True:
            begin, ending = self._read, None
            end = begin
            while end < len(self._text) and ending is None:
                ending = scan.take(self._text[end])
                end += ending is not _Ending.BEFORE and ending is not _Ending.BROKEN
            self.at += end - begin
            if end > begin:
                yield self._text[begin:end]
            if ending is not None or self.is_over:
                return ending in (_Ending.HERE, _Ending.BEFORE) or (ending is None and scan.is_whole)
            yield None

    def json_text(self) -> Generator[None, None, tuple[str, bool]]:
        pieces: list[str] = []
        reading = self.json_value()
        while True:
            try:
                piece = next(reading)
            except StopIteration as ended:
                return "".join(pieces), bool(ended.value)
            if piece is None:
                yield None
            else:
                pieces.append(piece)

    def json_string(self) -> Generator[None, None, str | None]:
        """Take a JSON string and return its value; None if there is none."""
        if (yield from self.next_letter()) != '"':
            return None
        text, is_whole = yield from self.json_text()
        try:
            value = json.loads(text, strict=False) if is_whole else None
        except ValueError:
            return None
        return value if isinstance(value, str) else None


class _Ending(Enum):
    """The end of a JSON value: at a letter, before it, or before it with an incomplete value."""

    HERE = auto()
    BEFORE = auto()
    BROKEN = auto()


@dataclass(slots=True)
class _JsonScan:
    """Finds the end of a JSON value, letter by letter, by brackets and strings."""

    depth: int = 0
    is_text: bool = False
    is_escaped: bool = False
    is_begun: bool = False

    @property
    def is_whole(self) -> bool:
        return self.is_begun and not self.depth and not self.is_text

    def take(self, letter: str) -> _Ending | None:
        if self.is_text:
            return self._take_of_text(letter)
        if not self.depth and (letter in BLANK or letter in ",}]" or (letter == '"' and self.is_begun)):
            return _Ending.BEFORE if self.is_begun else _Ending.BROKEN
        if letter not in _OUTSIDE:
            return _Ending.BEFORE if self.is_whole else _Ending.BROKEN
        self.is_begun = True
        self.is_text = letter == '"'
        self.depth += (letter in "{[") - (letter in "}]")
        return _Ending.HERE if letter in "}]" and not self.depth else None

    def _take_of_text(self, letter: str) -> _Ending | None:
        if self.is_escaped:
            self.is_escaped = False
        elif letter == "\\":
            self.is_escaped = True
        elif letter == '"':
            self.is_text = False
            return None if self.depth else _Ending.HERE
        return None


def told(pieces: Pieces[_T], as_part: Callable[[str], Part]) -> Reading[_T]:
    """Convert pieces of text to parts."""
    while True:
        try:
            piece = next(pieces)
        except StopIteration as ended:
            value: _T = ended.value
            return value
        yield None if piece is None else as_part(piece)


@lru_cache(maxsize=512)
def _any_of(marks: tuple[str, ...]) -> re.Pattern[str]:
    return re.compile("|".join(map(re.escape, sorted(marks, key=len, reverse=True))))
