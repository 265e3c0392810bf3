"""The figures of docs/benchmarks.md, drawn from the rows of the experiments; the same bytes for the same numbers.

matplotlib is imported when the first figure is drawn (extra `bench`).
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from cosine_protocol.errors import UsageError

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Row = Mapping[str, Any]
Rows = Sequence[Row]

STYLES: Final[Mapping[str, tuple[str, str]]] = MappingProxyType(
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
    }
)
"""A colour and a marker for each strategy, after Okabe and Ito's palette for all kinds of colour vision."""
OTHER_STYLE: Final = ("#999933", ".")
"""Of a strategy that has no style."""
# Choices of layout, in inches and points; the salt makes equal figures equal bytes.
BAR_INCHES: Final = 0.28
SETTINGS: Final[dict[Any, Any]] = {
    "svg.hashsalt": "cosine-p2p",
    "svg.fonttype": "none",
    "font.size": 9.0,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.alpha": 0.3,
    "legend.frameon": False,
}


@contextmanager
def panels(
    path: Path, rows: Rows, key: Callable[[Row], Any], *, size_inches: tuple[float, float]
) -> Iterator[Sequence[tuple["Axes", Any, Rows]]]:
    """A panel for each key in the order of its first row, with its rows, saved as SVG once drawn on.

    Raises `UsageError` without matplotlib.
    """
    try:
        import matplotlib
        from matplotlib.figure import Figure
    except ModuleNotFoundError as missing:
        if missing.name is None or not missing.name.startswith("matplotlib"):
            raise
        raise UsageError("Figures are drawn by matplotlib; install cosine-p2p[bench].") from None
    keys = list(dict.fromkeys(map(key, rows)))
    with matplotlib.rc_context(SETTINGS):
        drawing: Figure = Figure(figsize=(len(keys) * size_inches[0], size_inches[1]), layout="constrained")
        yield [
            (drawing.add_subplot(1, len(keys), number), one, [row for row in rows if key(row) == one])
            for number, one in enumerate(keys, 1)
        ]
        drawing.savefig(path, format="svg", metadata={"Date": None})


def _temperature(row: Row) -> str:
    return f"temperature {row['temperature']:g}"


def _setting(row: Row) -> str:
    return f"{row['load']}, {row['profile']}\n{_temperature(row)}"


def speedup_by_rtt(rows: Rows, path: Path) -> None:
    """Speedup over plain decoding against the round-trip time, one panel for each temperature."""
    rows = sorted(rows, key=lambda row: float(row["temperature"]))
    with panels(path, rows, _temperature, size_inches=(5.0, 4.0)) as drawn:
        for axes, title, own in drawn:
            for strategy in dict.fromkeys(row["strategy"] for row in own):
                points = sorted((row["rtt_ms"], row["speedup"]) for row in own if row["strategy"] == strategy)
                colour, marker = STYLES.get(strategy, OTHER_STYLE)
                axes.plot(
                    *zip(*points, strict=True),
                    color=colour,
                    marker=marker,
                    markersize=4,
                    linewidth=2.2 if strategy == "cosine" else 1.2,
                    linestyle="--" if strategy == "plain" else "-",
                    label=strategy,
                )
            # Round-trip times are spread over three decades, with 0 among them.
            axes.set_xscale("symlog", linthresh=2.0)
            ticks = sorted({row["rtt_ms"] for row in own})
            axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
            axes.minorticks_off()
            axes.set_ylim(bottom=0.0)
            axes.set_title(title)
            axes.set_xlabel("emulated round-trip time, ms")
            axes.set_ylabel("times as fast as plain decoding")
        drawn[-1][0].legend(loc="upper left", bbox_to_anchor=(1.0, 1.0))


def _name_bars(axes: "Axes", names: Sequence[str], *, is_first: bool) -> None:
    """Names beside the bars of the first panel, the first on top."""
    axes.set_yticks(range(len(names)), names if is_first else [""] * len(names))
    axes.invert_yaxis()


def ablation_bars(rows: Rows, path: Path) -> None:
    """Speedup over plain decoding as parts are added, and without each of them, for every place measured."""
    labels = list(dict.fromkeys(row["label"] for row in rows))
    size_inches = (3.4, 1.0 + BAR_INCHES * len(labels))
    with panels(
        path, rows, lambda row: f"{_temperature(row)}, RTT {row['rtt_ms']:g} ms", size_inches=size_inches
    ) as drawn:
        for axes, title, own in drawn:
            colours = [STYLES["cosine"][0] if row["order"] == "cumulative" else "#BBBBBB" for row in own]
            axes.barh([labels.index(row["label"]) for row in own], [row["speedup"] for row in own], color=colours)
            _name_bars(axes, labels, is_first=axes is drawn[0][0])
            axes.set_title(title)
            axes.set_xlabel("times as fast as plain decoding")


def acceptance_matrix(rows: Rows, path: Path) -> None:
    """Shares of first choices that hit, drafters by domains, one panel for each temperature."""
    drafters = sorted({row["drafter"] for row in rows})
    domains = sorted({row["domain"] for row in rows})
    with panels(path, rows, _temperature, size_inches=(5.0, 3.2)) as drawn:
        for axes, title, own in drawn:
            shares = {(row["drafter"], row["domain"]): row["first_choice"] for row in own}
            matrix = [[shares[drafter, domain] for domain in domains] for drafter in drafters]
            axes.imshow(matrix, cmap="cividis", vmin=0.0, vmax=1.0, aspect="auto")
            axes.grid(visible=False)
            axes.set_xticks(range(len(domains)), domains)
            axes.set_yticks(range(len(drafters)), drafters)
            for y, line in enumerate(matrix):
                for x, share in enumerate(line):
                    colour = "black" if share > 0.5 else "white"
                    axes.text(x, y, f"{share:.2f}", ha="center", va="center", color=colour)
            axes.set_title(f"first choice is the target's token, {title}")


def growth(rows: Rows, path: Path) -> None:
    """Bytes that a client moves and records that a key of the DHT holds, against the number of nodes."""
    lines = [
        ("kB a client", "generation", "stream_bytes_per_client", 1e3),
        ("kB a client", "finding nodes", "client_bytes_read", 1e3),
        ("records a key", "most", "records_per_key_max", 1.0),
        ("records a key", "mean", "records_per_key_mean", 1.0),
    ]
    told = [
        {"unit": unit, "label": label, "points": sorted((row["nodes"], row[field] / per) for row in rows)}
        for unit, label, field, per in lines
    ]
    with panels(path, told, lambda line: line["unit"], size_inches=(5.0, 3.2)) as drawn:
        for axes, unit, own in drawn:
            for line, marker in zip(own, "os", strict=True):
                axes.loglog(*zip(*line["points"], strict=True), marker=marker, markersize=4, label=line["label"])
            axes.set_ylabel(unit)
            axes.set_xlabel("live nodes")
            axes.legend()


def latencies(rows: Rows, path: Path) -> None:
    """Seconds of a request from the median to the 95th percentile, for each setting."""
    rows = [row for row in rows if row["strategy"] in STYLES]
    names = list(dict.fromkeys(row["strategy"] for row in rows))
    with panels(path, rows, _setting, size_inches=(2.9, 1.0 + BAR_INCHES * len(names))) as drawn:
        for axes, title, own in drawn:
            for row in own:
                colour, y = STYLES[row["strategy"]][0], names.index(row["strategy"])
                ends = row["request_p50_ms"] / 1e3, row["request_p95_ms"] / 1e3
                axes.plot(ends, (y, y), color=colour, linewidth=3.0, solid_capstyle="butt")
                axes.plot(ends[:1], (y,), color=colour, marker="o", markersize=6)
            _name_bars(axes, names, is_first=axes is drawn[0][0])
            axes.set_xlim(left=0.0)
            axes.set_title(title, fontsize=8)
            axes.set_xlabel("seconds a request, p50 to p95")


def distribution(rows: Rows, path: Path) -> None:
    """The share of requests that took no longer, by `request_ms` of each row, for each setting."""
    with panels(path, rows, _setting, size_inches=(3.4, 3.2)) as drawn:
        for axes, title, own in drawn:
            for row in own:
                seconds = [value / 1e3 for value in sorted(row["request_ms"])]
                shares = [number / len(seconds) for number in range(1, len(seconds) + 1)]
                colour = STYLES.get(row["strategy"], OTHER_STYLE)[0]
                axes.step(seconds, shares, where="post", color=colour, linewidth=1.2, label=row["strategy"])
            axes.set_title(title, fontsize=8)
            axes.set_xlabel("seconds a request")
        drawn[0][0].set_ylabel("share of requests")
        drawn[-1][0].legend(loc="upper left", bbox_to_anchor=(1.0, 1.0))
