"""Tables in Markdown, with numbers as people read them."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

Row = Mapping[str, Any]
Rows = Sequence[Row]

MISSING: Final = "-"
"""Stands in a cell without a value."""


def table(headings: Sequence[str], lines: Sequence[Sequence[Any]]) -> str:
    """A table; columns of numbers stand to the right."""
    numeric = [all(isinstance(line[place], int | float) for line in lines) for place in range(len(headings))]
    rule = ["--:" if is_numeric else "---" for is_numeric in numeric]
    cells = [list(headings), rule, *([shown(cell) for cell in line] for line in lines)]
    return "\n".join(f"| {' | '.join(line)} |" for line in cells)


def pivot(rows: Rows, *, down: str, across: str, cell: str) -> str:
    """A table with a line for each text of `down` and a column for each of `across`, in the order of the rows.

    All three are templates that `filled` fills in with a row.
    """
    cells = {(filled(down, row), filled(across, row)): filled(cell, row) for row in rows}
    columns = list(dict.fromkeys(column for _, column in cells))
    lines = dict.fromkeys(line for line, _ in cells)
    return table(["", *columns], [[line, *(cells.get((line, one)) for one in columns)] for line in lines])


class _ShownFields:
    """The fields of a row as text."""

    def __init__(self, row: Row) -> None:
        self._row = row

    def __getitem__(self, name: str) -> str:
        return shown(self._row[name])


def filled(template: str, row: Row) -> str:
    """A template with the fields of a row in its braces. Raises `KeyError` for a field that the row lacks."""
    return template.format_map(_ShownFields(row))


def shown(value: Any) -> str:
    """A value as text that cannot break a table, numbers with three significant figures."""
    match value:
        case None:
            return MISSING
        case bool():
            return "yes" if value else "no"
        case int():
            return f"{value:,}"
        case float():
            return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"
        case list() | tuple():
            return ", ".join(map(shown, value))
        case _:
            return str(value).replace("|", "\\|")


def words(key: str) -> str:
    """The key of a field as a heading."""
    return key.replace("_", " ")
