"""Pieces of Markdown: tables, lists, numbers as people read them."""

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

MISSING: Final = "-"


def table(headings: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """A table; numbers are rounded by `shown` and stand to the right."""
    body = [list(row) for row in rows]
    numeric = [all(isinstance(row[i], int | float) for row in body) for i in range(len(headings))]
    rule = ["--:" if is_numeric else "---" for is_numeric in numeric]
    lines = [list(headings), rule, *([shown(cell) for cell in row] for row in body)]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in lines)


def bullets(sentences: Iterable[str]) -> str:
    """A list, one sentence an item."""
    return "\n".join(f"- {sentence}" for sentence in sentences)


def paragraphs(parts: Iterable[str]) -> str:
    """Parts that are not empty, with a blank line between any two."""
    return "\n\n".join(part for part in parts if part)


def shown(value: Any) -> str:
    """A value as text that cannot break a table: three significant digits or so, names of fields as words."""
    match value:
        case None:
            return MISSING
        case Mapping() if not value:
            return MISSING
        case bool():
            return "yes" if value else "no"
        case float():
            return _rounded(value)
        case Mapping() | list() | tuple():
            return f"`{json.dumps(value, sort_keys=True)}`".replace("|", "\\|")
        case _:
            return str(value).replace("|", "\\|")


def _rounded(value: float) -> str:
    if value == int(value) and abs(value) < 1e6:
        return f"{int(value):,}"
    if abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.2f}" if abs(value) >= 1 else f"{value:.3f}" if abs(value) >= 0.01 else f"{value:.2g}"


def times(ratio: float) -> str:
    """A ratio, as in 1.52x."""
    return f"{ratio:.2f}x"


def percent(share: float) -> str:
    """A share, as in 41 %."""
    return f"{100 * share:.0f} %"


def words(key: str) -> str:
    """The key of a field as a heading."""
    return key.replace("_", " ")
