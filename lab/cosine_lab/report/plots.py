"""The figures of docs/benchmarks.md: lines and bars of rows, the same bytes for the same numbers.

matplotlib is imported when the first figure is drawn (extra `bench`).
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from cosine_lab.report.markdown import Row, Rows, filled, words
from cosine_protocol.errors import UsageError

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Style = tuple[str, str]
RowsOf = Callable[[Row], Rows]
"""The rows of a result that something is about."""

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
        "oracle": ("#332288", "*"),
        "oracle, drafters told": ("#999933", "."),
        "a drafter at the verifier, nobody else": ("#882255", "<"),
    }
)
"""A colour and a marker for each strategy, after Okabe and Ito's palette for all kinds of colour vision."""
OTHER_STYLES: Final = (("#117733", "h"), ("#BBBBBB", "p"), ("#AA4499", "d"), ("#44AA99", "8"))
"""Of other names in turn, none of them a strategy's."""
# Choices of layout, in inches and points; the salt makes equal figures equal bytes.
WIDTH_INCHES: Final = 20.0
MOST_PANEL_INCHES: Final = 5.0
LINES_INCHES: Final = 4.0
BAR_INCHES: Final = 0.22
FEW_VALUES: Final = 16
SETTINGS: Final[dict[Any, Any]] = {
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


@dataclass(frozen=True, slots=True)
class LinePlot:
    """A figure of some rows of a result, `name` its file's: a panel for each text of the template `panel`.

    In it is a line for each text of the template `line`, through the fields `x` and `y` of its rows; around it is a
    paler band between the two ends that the field `band` holds. The field `level` has the height of a dashed line.
    A few values of `x` are those of a sweep, on a logarithmic scale, unless it `is_linear`.
    """

    name: str
    of: RowsOf
    panel: str
    line: str
    x: str
    y: str
    band: str = ""
    level: str = ""
    is_linear: bool = False

    def draw(self, rows: Rows, path: Path) -> None:
        """Draw rows into an SVG file. Raises `UsageError`."""
        with _panels(path, rows, self.panel, height_inches=LINES_INCHES) as panels:
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
                    if self.band:
                        lows, highs = zip(*(row[self.band] for row in line), strict=True)
                        axes.fill_between(along, lows, highs, color=colour, alpha=0.12, linewidth=0.0)
                if has_few:
                    if not self.is_linear:
                        # With 0 among them.
                        axes.set_xscale("symlog", linthresh=2.0)
                    axes.set_xticks(values, [f"{value:g}" for value in values])
                    axes.minorticks_off()
                if self.level:
                    axes.axhline(own[0][self.level], color="#000000", linestyle="--", label=words(self.level))
                axes.set_ylim(bottom=0.0)
                axes.set_xlabel(words(self.x))
            panels[0][0].set_ylabel(words(self.y))
            if len(styles_of(own, self.line)) > 1:
                axes.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0))


@dataclass(frozen=True, slots=True)
class BarPlot:
    """A figure as `LinePlot`, with a bar for each text of the template `bar`.

    It is as long as the field `value`, in the colour of its `group`; a paler part goes on to the field `tail`.
    """

    name: str
    of: RowsOf
    panel: str
    bar: str
    group: str
    value: str
    tail: str = ""

    def draw(self, rows: Rows, path: Path) -> None:
        """Draw rows into an SVG file. Raises `UsageError`."""
        styles = styles_of(rows, self.group)
        bars = list(dict.fromkeys(filled(self.bar, row) for row in rows))
        with _panels(path, rows, self.panel, height_inches=1.0 + BAR_INCHES * len(bars)) as panels:
            for axes, own in panels:
                places = [bars.index(filled(self.bar, row)) for row in own]
                colours = [styles[filled(self.group, row)][0] for row in own]
                for field, alpha in ((self.tail, 0.35), (self.value, 1.0)):
                    if field:
                        axes.barh(places, [row[field] for row in own], color=colours, alpha=alpha)
                axes.set_yticks(range(len(bars)), bars if axes is panels[0][0] else [""] * len(bars))
                axes.invert_yaxis()
                axes.set_xlabel(words(f"{self.value}, {self.tail}".strip(", ")))


def styles_of(rows: Rows, template: str) -> dict[str, Style]:
    """The style of every text of a template: its own, or that of what stands before a comma in it, unless taken."""
    others = cycle(OTHER_STYLES)
    names = dict.fromkeys(filled(template, row) for row in rows)
    heads = {name: name.partition(", ")[0] for name in names}
    free = {name: head for name, head in heads.items() if head == name or head not in names}
    return {name: STYLES.get(name) or STYLES.get(free.get(name, "")) or next(others) for name in names}


@contextmanager
def _panels(
    path: Path, rows: Rows, template: str, *, height_inches: float
) -> Iterator[Sequence[tuple["Axes", Rows]]]:
    """A panel for each text of a template, with its rows, saved as SVG once drawn on.

    Raises `UsageError` without matplotlib.
    """
    try:
        import matplotlib
        from matplotlib.figure import Figure
    except ModuleNotFoundError as missing:
        if missing.name is None or not missing.name.startswith("matplotlib"):
            raise
        raise UsageError(
            "Figures are drawn by matplotlib: `pip install '.[lab]'` in the clone of the repository."
        ) from None
    titles = list(dict.fromkeys(filled(template, row) for row in rows))
    with matplotlib.rc_context(SETTINGS):
        width_inches = min(WIDTH_INCHES, len(titles) * MOST_PANEL_INCHES)
        drawing: Figure = Figure(figsize=(width_inches, height_inches), layout="constrained")
        yield [
            (
                drawing.add_subplot(1, len(titles), number, title=title),
                [row for row in rows if filled(template, row) == title],
            )
            for number, title in enumerate(titles, 1)
        ]
        drawing.savefig(path, format="svg", metadata={"Date": None})
