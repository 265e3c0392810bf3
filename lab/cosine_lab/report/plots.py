"""Line plots of rows for docs/benchmarks.md, the same bytes for the same numbers, and numbers as text."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from cosine_protocol.errors import UsageError

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Row = Mapping[str, Any]
Rows = Sequence[Row]
RowsOf = Callable[[Row], Rows]
"""Function from a result to some of its rows."""
Style = tuple[str, str]

STYLES: Final[Mapping[str, Style]] = MappingProxyType(
    {
        "plain": ("#777777", ""),
        "cosine": ("#D55E00", "o"),
        "speculative": ("#0072B2", "s"),
        "specinfer": ("#009E73", "^"),
        "spin": ("#CC79A7", "v"),
        "cosine-paper": ("#E69F00", "D"),
        "pipeinfer": ("#56B4E9", "P"),
        "dsi": ("#000000", "X"),
        "dsi-2": ("#B0A000", "x"),
        "a drafter at the verifier, nobody else": ("#882255", "<"),
    }
)
"""Colour and marker of each strategy, after the colour-blind safe palette of Okabe and Ito."""
OTHER_STYLES: Final = (("#117733", "h"), ("#BBBBBB", "p"), ("#AA4499", "d"), ("#44AA99", "8"))
"""Styles of other names, used in turn."""
# A page scales a figure to its width: the wider the figure, the smaller its text. So the total width is bounded.
MOST_PANEL_INCHES: Final = 5.0
WIDTH_INCHES: Final = 4 * MOST_PANEL_INCHES
LINES_INCHES: Final = 4.0
FEW_VALUES: Final = 16
"""Maximum number of x values drawn with ticks and markers."""
SETTINGS: Final[dict[Any, Any]] = {
    # Makes equal figures equal bytes.
    "svg.hashsalt": "cosine-p2p",
    "svg.fonttype": "none",
    "font.size": 9.0,
    "axes.titlesize": 8.0,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.alpha": 0.3,
    "legend.frameon": False,
    "lines.linewidth": 1.2,
    "lines.markersize": 4.0,
}


def rows_where(**wanted: Any) -> RowsOf:
    """Return a function that selects the rows with these values."""
    return lambda result: [row for row in result["rows"] if wanted.items() <= row.items()]


def filled(template: str, row: Row) -> str:
    """Return a template filled with the fields of a row. Raises `KeyError`."""
    return template.format_map({name: shown(value) for name, value in row.items()})


def shown(value: Any) -> str:
    """Return a value as text, numbers with three significant figures."""
    match value:
        case None:
            return "-"
        case bool():
            return "yes" if value else "no"
        case int():
            return f"{value:,}"
        case float():
            return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"
        case list() | tuple():
            return ", ".join(map(shown, value))
        case _:
            return str(value)


def words(key: str) -> str:
    """Return the key of a field as text."""
    return key.replace("_", " ")


@dataclass(frozen=True, slots=True)
class LinePlot:
    """A figure of rows of a result.

    name: name of its file.
    of: selects the rows.
    panel, line: templates; a panel for each distinct text of `panel`, with a line for each distinct text of `line`.
    x, y: fields of the rows. Up to `FEW_VALUES` values of x get a logarithmic scale.
    band: field with the two ends of the band around a line.
    """

    name: str
    of: RowsOf
    panel: str
    line: str
    x: str
    y: str
    band: str

    def draw(self, rows: Rows, path: Path) -> None:
        """Draw rows into an SVG file. Raises `UsageError`."""
        with _panels(path, rows, self.panel) as panels:
            for axes, own in panels:
                values = sorted({row[self.x] for row in own})
                has_few = len(values) <= FEW_VALUES
                for name, (colour, marker) in styles_of(own, self.line).items():
                    line = sorted(
                        (row for row in own if filled(self.line, row) == name), key=lambda row: row[self.x]
                    )
                    along = [row[self.x] for row in line]
                    axes.plot(
                        along,
                        [row[self.y] for row in line],
                        color=colour,
                        marker=marker if has_few else "",
                        label=name,
                    )
                    lows, highs = zip(*(row[self.band] for row in line), strict=True)
                    axes.fill_between(along, lows, highs, color=colour, alpha=0.12, linewidth=0.0)
                if has_few:
                    # Linear around 0, which is one of the values.
                    axes.set_xscale("symlog", linthresh=2.0)
                    axes.set_xticks(values, [f"{value:g}" for value in values])
                    axes.minorticks_off()
                axes.set_ylim(bottom=0.0)
                axes.set_xlabel(words(self.x))
            panels[0][0].set_ylabel(words(self.y))
            if len(styles_of(own, self.line)) > 1:
                axes.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0))


def styles_of(rows: Rows, template: str) -> dict[str, Style]:
    """Return the style of each line: of its name, or of the part before the comma unless that is a line."""
    others = cycle(OTHER_STYLES)
    names = dict.fromkeys(filled(template, row) for row in rows)
    heads = {name: name.partition(", ")[0] for name in names}
    free = {name: head for name, head in heads.items() if head == name or head not in names}
    return {name: STYLES.get(name) or STYLES.get(free.get(name, "")) or next(others) for name in names}


@contextmanager
def _panels(path: Path, rows: Rows, template: str) -> Iterator[Sequence[tuple["Axes", Rows]]]:
    """Yield a panel for each text of a template, with its rows, and save them as SVG. Raises `UsageError`."""
    try:
        import matplotlib
        from matplotlib.figure import Figure
    except ModuleNotFoundError as missing:
        if missing.name is None or not missing.name.startswith("matplotlib"):
            raise
        raise UsageError("Drawing figures requires matplotlib: run `pip install matplotlib`.") from None
    titles = list(dict.fromkeys(filled(template, row) for row in rows))
    with matplotlib.rc_context(SETTINGS):
        width_inches = min(WIDTH_INCHES, len(titles) * MOST_PANEL_INCHES)
        drawing: Figure = Figure(figsize=(width_inches, LINES_INCHES), layout="constrained")
        yield [
            (
                drawing.add_subplot(1, len(titles), number, title=title),
                [row for row in rows if filled(template, row) == title],
            )
            for number, title in enumerate(titles, 1)
        ]
        drawing.savefig(path, format="svg", metadata={"Date": None})
