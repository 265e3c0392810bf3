"""Text in tones that the theme colours, without control characters."""

import unicodedata
from collections.abc import Iterable
from enum import StrEnum
from typing import Final, Literal, NamedTuple

from rich import get_console
from rich.table import Column, Table
from rich.text import Text

_UNPRINTABLE: Final = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})
"""Unicode's general categories of controls, formats, and line and paragraph separators."""


class Tone(StrEnum):
    """The meaning of a piece of text: the name of a style in the Rich theme of `themes.py`."""

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


AUTHOR_TONES: Final = sum(tone.startswith("author-") for tone in Tone)  # Further authors share these colours.


class ListRow(NamedTuple):
    """A line of a list; with a key, a peer id or a request's number, it can be selected."""

    line: Text
    key: str = ""


def author_tone(author: int, *, is_copied: bool = False) -> Tone:
    """Return the tone of a drafter by its number from 1; 0 is the target."""
    if not author:
        return Tone.COPIED if is_copied else Tone.PLAIN
    return Tone(f"author-{(author - 1) % AUTHOR_TONES + 1}")


def author_mark(author: int, *, is_copied: bool = False) -> str:
    """Return the letter of a drafter, `=` if the verifier drafted, else a space."""
    if not author:
        return "=" if is_copied else " "
    return chr(ord("a") + (author - 1) % 26)


def clean(text: str) -> str:
    """Return untrusted text on one line: control and invisible characters become dots."""
    return "".join("·" if unicodedata.category(letter) in _UNPRINTABLE else letter for letter in text)


def clean_text(text: str) -> str:
    """Return the text as `clean`, with line breaks and tabs."""
    return "".join(letter if letter in "\n\t" else clean(letter) for letter in text)


def toned(text: str, tone: Tone = Tone.PLAIN) -> Text:
    return Text(clean(text), tone)


def fit(text: str, width: int, tone: Tone = Tone.PLAIN, align: Literal["left", "right"] = "left") -> Text:
    """Return exactly `width` cells of a text: padded, or cut with an ellipsis."""
    if width <= 0:
        return Text()
    fitted = toned(text, tone)
    fitted.truncate(width, overflow="ellipsis")
    fitted.align(align, width)
    return fitted


def cut(line: Text, width: int) -> Text:
    """Cut the line in place to at most `width` cells."""
    line.truncate(max(1, width), overflow="ellipsis")
    return line


def spread(left: Text, right: Text, width: int) -> Text:
    """Return two parts at the two ends of a line; the left one is cut if necessary."""
    room = width - right.cell_len
    if room < 1:
        return cut(right, width)
    left = cut(left, room - 1) if room > 1 else Text()
    left.pad_right(room - left.cell_len)
    return Text.assemble(left, right)


def wrap(text: Text, width: int) -> list[Text]:
    return list(text.wrap(get_console(), max(1, width)))


def flow(items: Iterable[Text], width: int, gap: int = 2) -> Text:
    """Return items side by side on lines of `width` cells, broken only if wider than a line."""
    lines: list[Text] = []
    for item in items:
        if lines and lines[-1].cell_len + gap + item.cell_len <= width:
            lines[-1] = Text.assemble(lines[-1], " " * gap, item)
        else:
            lines.append(item)
    return Text("\n").join(lines)


def beside(rows: Iterable[tuple[Text, ...]], columns: int = 2) -> Table:
    """Return a table of rows whose last cell is wrapped."""
    heads = [Column(no_wrap=True) for _ in range(columns - 1)]
    table = Table.grid(*heads, Column(overflow="fold"), padding=(0, 2, 0, 0))
    for row in rows:
        table.add_row(*row)
    return table
