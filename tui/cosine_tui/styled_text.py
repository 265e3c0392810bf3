"""Lines of text with tones, before any colour: cut, padded and wrapped by terminal cells."""

import re
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from enum import StrEnum
from typing import Final, Literal, NamedTuple

from rich.cells import cell_len, set_cell_size

ELLIPSIS: Final = "…"
"""Ends a text that was cut."""
AUTHOR_TONES: Final = 8
"""A choice: as many colours as can be told apart; further authors share them."""
STAND_IN: Final = "·"
"""Replaces each character of an unprintable category, of Unicode's general categories."""
_UNPRINTABLE: Final = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})  # controls, formats, separators
_WORD: Final = re.compile(r" *[^ ]+ *| +")
"""A word with the spaces around it."""


class Tone(StrEnum):
    """The meaning of a piece of text; a theme gives each tone its colour."""

    PLAIN = "plain"
    MUTED = "muted"
    STRONG = "strong"
    HEADING = "heading"
    GOOD = "good"
    WARNING = "warning"
    BAD = "bad"
    ACCENT = "accent"
    COPIED = "copied"
    AUTHOR_1 = "author-1"
    AUTHOR_2 = "author-2"
    AUTHOR_3 = "author-3"
    AUTHOR_4 = "author-4"
    AUTHOR_5 = "author-5"
    AUTHOR_6 = "author-6"
    AUTHOR_7 = "author-7"
    AUTHOR_8 = "author-8"


class Span(NamedTuple):
    """Text of one tone, without control characters."""

    text: str
    tone: Tone = Tone.PLAIN


Line = tuple[Span, ...]


class ListRow(NamedTuple):
    """A line of a list. With a key it is one that can be selected: a peer id, or a request's number."""

    line: Line
    key: str = ""


Align = Literal["left", "right"]
BLANK: Final[Line] = ()
"""An empty line."""


def author_tone(author: int, *, is_copied: bool = False) -> Tone:
    """The tone of a drafter by its number from 1; 0 is the target itself, which decodes or copies."""
    if not author:
        return Tone.COPIED if is_copied else Tone.PLAIN
    return Tone(f"author-{(author - 1) % AUTHOR_TONES + 1}")


def author_mark(author: int, *, is_copied: bool = False) -> str:
    """The letter of a drafter, so that nobody needs the colours; `=` if the verifier drafted, else it has none."""
    if not author:
        return "=" if is_copied else " "
    return chr(ord("a") + (author - 1) % 26)


def clean(text: str) -> str:
    """Text from a stranger, safe to print: whatever steers a terminal or hides is replaced by a dot."""
    return "".join(STAND_IN if unicodedata.category(letter) in _UNPRINTABLE else letter for letter in text)


def clean_text(text: str) -> str:
    """As `clean`, but line breaks and tabs stay: text of a stranger that is copied to be pasted elsewhere."""
    return "".join(letter if letter in "\n\t" else clean(letter) for letter in text)


def fit(text: str, width: int, align: Align = "left") -> str:
    """Exactly `width` cells of a text: padded, or cut with an ellipsis."""
    if width <= 0:
        return ""
    text = clean(text)
    if cell_len(text) > width:
        return set_cell_size(text, width - 1) + ELLIPSIS
    padding = " " * (width - cell_len(text))
    return padding + text if align == "right" else text + padding


def width_of(line: Line) -> int:
    """The cells a line takes."""
    return sum(cell_len(span.text) for span in line)


def text_of(lines: Iterable[Line]) -> str:
    """The lines without their tones."""
    return "\n".join("".join(span.text for span in line) for line in lines)


def cut(line: Line, width: int) -> Line:
    """At most `width` cells of a line."""
    kept: list[Span] = []
    left = width
    for span in line:
        if cell_len(span.text) > left:
            kept.append(Span(fit(span.text, left), span.tone))
            break
        kept.append(span)
        left -= cell_len(span.text)
    return tuple(kept)


def spread(left: Line, right: Line, width: int) -> Line:
    """Two parts at the two ends of a line; the left one gives way."""
    room = width - width_of(right)
    if room < 1:
        return cut(right, width)
    left = cut(left, room - 1)
    return (*left, Span(" " * (room - width_of(left))), *right)


def pack(items: Iterable[Line], width: int, gap: int = 2) -> list[Line]:
    """Items side by side, `gap` cells apart, none of them broken unless it is wider than a line."""
    lines: list[Line] = []
    for item in items:
        line = (*lines[-1], Span(" " * gap), *item) if lines else item
        if lines and width_of(line) <= width:
            lines[-1] = line
        else:
            lines.append(item)
    return [cut(line, width) for line in lines]


def wrap(spans: Sequence[Span], width: int) -> list[Line]:
    """Running text as lines of at most `width` cells, broken at spaces where there are any; `\n` ends a line."""
    width = max(1, width)
    lines: list[Line] = []
    for row in _rows(spans):
        lines += _wrapped(row, width)
    return lines


def _rows(spans: Sequence[Span]) -> Iterator[list[Span]]:
    """The text between line breaks, safe to print."""
    row: list[Span] = []
    for span in spans:
        first, *others = span.text.replace("\t", "    ").split("\n")
        row.append(Span(clean(first), span.tone))
        for other in others:
            yield row
            row = [Span(clean(other), span.tone)]
    yield row


def _wrapped(row: Sequence[Span], width: int) -> list[Line]:
    """A row broken before the words that do not fit, and within a word that fits no line."""
    lines: list[list[Span]] = [[]]
    used = 0
    for word in _words(row):
        is_too_long = width_of(word) - _trailing_spaces(word) > width
        letters = ((Span(letter, span.tone),) for span in word for letter in span.text)
        for part in letters if is_too_long else (word,):
            cells = width_of(part)
            if used and used + cells - _trailing_spaces(part) > width:
                lines.append([])
                used = 0
            lines[-1] += part
            used += cells
    return [_without_trailing_spaces(line, width) for line in lines]


def _words(row: Sequence[Span]) -> Iterator[Line]:
    """Pieces that end after spaces, whatever their tones."""
    word: list[Span] = []
    for span in row:
        for piece in _WORD.findall(span.text):
            if word and word[-1].text.endswith(" ") and not piece.isspace():
                yield tuple(word)
                word = []
            word.append(Span(piece, span.tone))
    if word:
        yield tuple(word)


def _trailing_spaces(line: Line) -> int:
    text = "".join(span.text for span in line)
    return len(text) - len(text.rstrip(" "))


def _without_trailing_spaces(line: Sequence[Span], width: int) -> Line:
    """Spaces that would stick out of a line are not needed there."""
    kept = list(line)
    while kept and width_of(tuple(kept)) > width and kept[-1].text.endswith(" "):
        kept[-1] = Span(kept[-1].text[:-1], kept[-1].tone)
        if not kept[-1].text:
            kept.pop()
    return cut(tuple(kept), width)
