"""The parts that sections of docs/benchmarks.md are made of: findings with their targets, tables, and the section.

Texts are templates, filled in with the fields of the rows that they are about (`markdown.filled`).
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final

from cosine_lab.report.markdown import Row, Rows, filled, pivot, shown, table, words
from cosine_lab.report.plots import BarPlot, LinePlot, RowsOf


def rows(**wanted: Any) -> RowsOf:
    """The rows whose fields have these values."""
    return lambda result: [row for row in result["rows"] if wanted.items() <= row.items()]


def found(name: str = "", **wanted: Any) -> RowsOf:
    """The findings, or the entries of one of them whose fields have these values."""

    def entries(result: Row) -> Rows:
        among = result["findings"][name] if name else result["findings"]
        listed = among if isinstance(among, list) else [among]
        return [entry for entry in listed if wanted.items() <= entry.items()]

    return entries


@dataclass(frozen=True, slots=True)
class FindingLine:
    """Lines of the table of findings, one for each row of `of`: its `field`, and what was aimed at.

    A limit is a number, or the name of the field that holds it. A row without a value has no line.
    """

    what: str
    field: str
    of: RowsOf
    least: float | str | None = None
    most: float | str | None = None

    def lines(self, result: Row) -> Iterator[list[str]]:
        """What, measured, target, and whether that is met."""
        for row in self.of(result):
            measured = row[self.field]
            if measured is None:
                continue
            cells = [filled(self.what, row), shown(measured)]
            if self.least is not None:
                limit = row[self.least] if isinstance(self.least, str) else self.least
                cells += [f"at least {shown(limit)}", shown(measured >= limit)]
            elif self.most is not None:
                limit = row[self.most] if isinstance(self.most, str) else self.most
                cells += [f"at most {shown(limit)}", shown(measured <= limit)]
            else:
                cells += ["", ""]
            yield cells


@dataclass(frozen=True, slots=True)
class Table:
    """A table of rows, with its caption."""

    caption: str
    of: RowsOf
    markdown: Callable[[Rows], str]


def columns(caption: str, of: RowsOf, fields: str) -> Table:
    """A table with a line for each row and a column for each of the fields, which stand in one string."""
    names = fields.split()
    return Table(
        caption, of, lambda own: table(list(map(words, names)), [[row.get(name) for name in names] for row in own])
    )


def pivoted(caption: str, of: RowsOf, down: str, across: str, cell: str) -> Table:
    """A table by two things, as `markdown.pivot` makes it."""
    return Table(caption, of, lambda own: pivot(own, down=down, across=across, cell=cell))


@dataclass(frozen=True, slots=True)
class Section:
    """A section of the page; its findings stand in one table."""

    title: str
    findings: tuple[FindingLine, ...]
    figures: tuple[LinePlot | BarPlot, ...]
    tables: tuple[Table, ...]


# Templates that several tables share.
PLACE: Final = "{rtt_ms} ms, T {temperature}"
MACHINES: Final = "{profile}, T {temperature}"
LOAD: Final = "{load}, {profile}, T {temperature}"
CLOCK: Final = "T {temperature}, {emulated_rtt_ms} ms added to links"
BEST: Final = "{best_other}"
SAMPLED: Final = "T {temperature}, {strategy}"
EXACT: Final = FindingLine("texts that differ from the target's own", "mismatches", found(), most=0)
ALIKE: Final = FindingLine("prompts whose texts were not the same in all ways", "mismatches", found())
KEPT: Final = FindingLine("other promises broken", "violations", found(), most=0)
