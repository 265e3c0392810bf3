"""The figures of docs/benchmarks.md, drawn from the JSON of the experiments; the same bytes for the same numbers.

matplotlib is imported when the first figure is drawn (extra `bench`).
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from cosine_protocol.errors import UsageError

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Result = Mapping[str, Any]
Row = Mapping[str, Any]

COLOURS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "plain": "#777777",
        "cosine": "#D55E00",
        "speculative": "#0072B2",
        "specinfer": "#009E73",
        "spin": "#CC79A7",
        "cosine-paper": "#E69F00",
        "pipeinfer": "#56B4E9",
        "dsi": "#000000",
        "dsi-2": "#B0A000",
        "oracle": "#332288",
    }
)
"""A colour for each strategy, after Okabe and Ito's palette for all kinds of colour vision."""
MARKERS: Final[Mapping[str, str]] = MappingProxyType(
    dict(zip(COLOURS, ("", "o", "s", "^", "v", "D", "P", "X", "x", "*"), strict=True))
)
OTHER_COLOUR: Final = "#999933"
PANEL_INCHES: Final = (5.0, 4.0)
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


def colour(strategy: str) -> str:
    """The colour of a strategy; one that has none gets a colour of its own kind."""
    return COLOURS.get(strategy, OTHER_COLOUR)


@contextmanager
def figure(
    path: Path, *, columns: int = 1, size_inches: tuple[float, float] = PANEL_INCHES
) -> Iterator[Sequence["Axes"]]:
    """Axes side by side, each of that size, saved as SVG once drawn on. Raises `UsageError` without matplotlib."""
    try:
        import matplotlib
        from matplotlib.figure import Figure
    except ModuleNotFoundError as missing:
        if missing.name is None or not missing.name.startswith("matplotlib"):
            raise
        raise UsageError("Figures are drawn by matplotlib; install cosine-p2p[bench].") from None
    with matplotlib.rc_context(SETTINGS):
        drawing: Figure = Figure(figsize=(columns * size_inches[0], size_inches[1]), layout="constrained")
        yield [drawing.add_subplot(1, columns, column + 1) for column in range(columns)]
        drawing.savefig(path, format="svg", metadata={"Date": None})


def speedup_by_rtt(result: Result, path: Path) -> None:
    """Speedup over plain decoding against the round-trip time, one panel for each temperature."""
    rows = [row for row in result["rows"] if row["part"] == "sweep"]
    temperatures = sorted({row["temperature"] for row in rows})
    with figure(path, columns=len(temperatures)) as panels:
        for axes, temperature in zip(panels, temperatures, strict=True):
            _curves(axes, [row for row in rows if row["temperature"] == temperature])
            axes.set_title(f"temperature {temperature:g}")
            axes.set_xlabel("emulated round-trip time, ms")
            axes.set_ylabel("times as fast as plain decoding")
        panels[-1].legend(loc="upper left", bbox_to_anchor=(1.0, 1.0))


def _curves(axes: "Axes", rows: Sequence[Row]) -> None:
    for strategy in dict.fromkeys(row["strategy"] for row in rows):
        points = sorted((row["rtt_ms"], row["speedup"]) for row in rows if row["strategy"] == strategy)
        axes.plot(
            [rtt for rtt, _ in points],
            [speedup for _, speedup in points],
            color=colour(strategy),
            marker=MARKERS.get(strategy, "."),
            markersize=4,
            linewidth=2.2 if strategy == "cosine" else 1.2,
            linestyle="--" if strategy == "plain" else "-",
            label=strategy,
        )
    # Round-trip times are spread over three decades, with 0 among them.
    axes.set_xscale("symlog", linthresh=2.0)
    ticks = sorted({row["rtt_ms"] for row in rows})
    axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    axes.minorticks_off()
    axes.set_ylim(bottom=0.0)


def ablation_bars(result: Result, path: Path) -> None:
    """Speedup over plain decoding as parts are added, and without each of them, for every place measured."""
    rows = [row for row in result["rows"] if row["part"] == "ablation"]
    places = sorted({(row["temperature"], row["rtt_ms"]) for row in rows})
    labels = list(dict.fromkeys(row["label"] for row in rows))
    with figure(path, columns=len(places), size_inches=(3.4, 1.0 + BAR_INCHES * len(labels))) as panels:
        for axes, place in zip(panels, places, strict=True):
            shown = {row["label"]: row for row in rows if (row["temperature"], row["rtt_ms"]) == place}
            axes.barh(
                range(len(labels)),
                [shown[label]["speedup"] for label in labels],
                color=[
                    colour("cosine") if shown[label]["order"] == "cumulative" else "#BBBBBB" for label in labels
                ],
            )
            axes.set_yticks(range(len(labels)), labels if axes is panels[0] else [""] * len(labels))
            axes.invert_yaxis()
            axes.set_title(f"temperature {place[0]:g}, RTT {place[1]:g} ms")
            axes.set_xlabel("times as fast as plain decoding")


def acceptance_matrix(result: Result, path: Path) -> None:
    """Shares of first choices that hit, drafters by domains, one panel for each temperature."""
    rows = result["rows"]
    temperatures = sorted({row["temperature"] for row in rows})
    with figure(path, columns=len(temperatures), size_inches=(5.0, 3.2)) as panels:
        for axes, temperature in zip(panels, temperatures, strict=True):
            _matrix(axes, [row for row in rows if row["temperature"] == temperature])
            axes.set_title(f"first choice is the target's token, temperature {temperature:g}")


def _matrix(axes: "Axes", rows: Sequence[Row]) -> None:
    drafters = sorted({row["drafter"] for row in rows})
    domains = sorted({row["domain"] for row in rows})
    shares = {(row["drafter"], row["domain"]): row["first_choice"] for row in rows}
    axes.imshow(
        [[shares[drafter, domain] for domain in domains] for drafter in drafters],
        cmap="cividis",
        vmin=0.0,
        vmax=1.0,
        aspect="auto",
    )
    axes.grid(visible=False)
    axes.set_xticks(range(len(domains)), domains)
    axes.set_yticks(range(len(drafters)), drafters)
    for y, drafter in enumerate(drafters):
        for x, domain in enumerate(domains):
            share = shares[drafter, domain]
            axes.text(x, y, f"{share:.2f}", ha="center", va="center", color="black" if share > 0.5 else "white")


def growth(result: Result, path: Path) -> None:
    """What a client moves and what a key of the DHT holds, against the number of nodes."""
    rows = sorted(result["rows"], key=lambda row: float(row["nodes"]))
    nodes = [row["nodes"] for row in rows]
    with figure(path, columns=2, size_inches=(5.0, 3.2)) as (traffic, records):
        for name, field, marker in (
            ("generation", "stream_bytes_per_client", "o"),
            ("finding nodes", "client_bytes_read", "s"),
        ):
            traffic.loglog(nodes, [row[field] / 1e3 for row in rows], marker=marker, markersize=4, label=name)
        traffic.set_ylabel("kB a client")
        traffic.legend()
        records.loglog(nodes, [row["records_per_key_max"] for row in rows], marker="o", markersize=4, label="most")
        records.loglog(nodes, [row["records_per_key_mean"] for row in rows], marker="s", markersize=4, label="mean")
        records.set_ylabel("records a key")
        records.legend()
        for axes in (traffic, records):
            axes.set_xlabel("live nodes")


def latencies(result: Result, path: Path) -> None:
    """Seconds of a request from the median to the 95th percentile, for each setting."""
    rows = [row for row in result["rows"] if row["strategy"] in COLOURS]
    places = list(dict.fromkeys((row["load"], row["profile"], row["temperature"]) for row in rows))
    names = list(dict.fromkeys(row["strategy"] for row in rows))
    size_inches = (2.9, 1.0 + BAR_INCHES * len(names))
    with figure(path, columns=len(places), size_inches=size_inches) as panels:
        for axes, place in zip(panels, places, strict=True):
            shown = [row for row in rows if (row["load"], row["profile"], row["temperature"]) == place]
            for row in shown:
                ends = row["request_p50_ms"] / 1e3, row["request_p95_ms"] / 1e3
                y = names.index(row["strategy"])
                axes.plot(ends, (y, y), color=colour(row["strategy"]), linewidth=3.0, solid_capstyle="butt")
                axes.plot(ends[:1], (y,), color=colour(row["strategy"]), marker="o", markersize=6)
            axes.set_yticks(range(len(names)), names if axes is panels[0] else [""] * len(names))
            axes.invert_yaxis()
            axes.set_xlim(left=0.0)
            axes.set_title(f"{place[0]}, {place[1]}\ntemperature {place[2]:g}", fontsize=8)
            axes.set_xlabel("seconds a request, p50 to p95")


def distribution(result: Result, path: Path) -> None:
    """The share of requests that took no longer, by `request_ms` of each row, for each setting."""
    rows = [row for row in result["rows"] if row.get("request_ms")]
    places = list(dict.fromkeys((row["load"], row["profile"], row["temperature"]) for row in rows))
    with figure(path, columns=len(places), size_inches=(3.4, 3.2)) as panels:
        for axes, place in zip(panels, places, strict=True):
            for row in rows:
                if (row["load"], row["profile"], row["temperature"]) == place:
                    seconds = [value / 1e3 for value in sorted(row["request_ms"])]
                    shares = [number / len(seconds) for number in range(1, len(seconds) + 1)]
                    name = row["strategy"]
                    axes.step(seconds, shares, where="post", color=colour(name), linewidth=1.2, label=name)
            axes.set_title(f"{place[0]}, {place[1]}\ntemperature {place[2]:g}", fontsize=8)
            axes.set_xlabel("seconds a request")
        panels[0].set_ylabel("share of requests")
        panels[-1].legend(loc="upper left", bbox_to_anchor=(1.0, 1.0))
