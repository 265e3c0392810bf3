"""Pieces of Markdown: tables, lists, numbers as people read them."""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

MISSING: Final = "-"
"""Stands in a cell without a value."""


def table(headings: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """A table; numbers are rounded by `shown` and stand to the right."""
    body = [list(row) for row in rows]
    numeric = [all(isinstance(row[i], int | float) for row in body) for i in range(len(headings))]
    rule = ["--:" if is_numeric else "---" for is_numeric in numeric]
    lines = [list(headings), rule, *([shown(cell) for cell in row] for row in body)]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in lines)


def pivot(
    heading: str,
    rows: Sequence[Mapping[str, Any]],
    *,
    down: str,
    across: Callable[[Mapping[str, Any]], str],
    cell: Callable[[Mapping[str, Any]], Any],
) -> str:
    """A table of rows by the field `down` and by what `across` gives, each in the order of its first row."""
    columns = list(dict.fromkeys(map(across, rows)))
    cells = {(row[down], across(row)): cell(row) for row in rows}
    names = dict.fromkeys(row[down] for row in rows)
    return table(
        [heading, *columns], [[name, *(cells.get((name, column)) for column in columns)] for name in names]
    )


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
        case float() if value == int(value) and abs(value) < 1e6:
            return f"{int(value):,}"
        case float() if abs(value) >= 100:
            return f"{value:,.0f}"
        case float():
            return f"{value:.2f}" if abs(value) >= 1 else f"{value:.3f}" if abs(value) >= 0.01 else f"{value:.2g}"
        case Mapping() | list() | tuple():
            return f"`{json.dumps(value, sort_keys=True)}`".replace("|", "\\|")
        case _:
            return str(value).replace("|", "\\|")


def times(ratio: float) -> str:
    """A ratio, as in 1.52x."""
    return f"{ratio:.2f}x"


def percent(share: float) -> str:
    """A share, as in 41 %."""
    return f"{100 * share:.0f} %"


def words(key: str) -> str:
    """The key of a field as a heading."""
    return key.replace("_", " ")


def verdict(is_met: bool, target: str) -> str:
    """The sentence on a target."""
    return f"The target, {target}, is {'met' if is_met else 'not met'}."


def spread(values: Iterable[float], show: Callable[[float], str]) -> str:
    """The least and the greatest of some values, as in 1.17x to 1.55x."""
    known = sorted(values)
    low, high = show(known[0]), show(known[-1])
    return low if low == high else f"{low} to {high}"
