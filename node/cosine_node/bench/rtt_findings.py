"""What the rows of the sweep over round-trip times say, in numbers."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

Row = Mapping[str, Any]
PLACE: Final = ("profile", "temperature", "rtt_ms")
OURS: Final = "cosine"
PLAIN: Final = "plain"
BASELINE: Final = "speculative"


def findings_of(rows: Sequence[Row], *, main_rtt_ms: float) -> dict[str, Any]:
    """The floor against plain decoding, the distance to the best other everywhere, the parts and the bounds."""
    sweep = [row for row in rows if row["part"] == "sweep"]
    ours = [row for row in sweep if row["strategy"] == OURS]
    lowest = min(ours, key=lambda row: row["speedup"])
    against = list(_against_best(sweep))
    closest = min(against, key=lambda row: row["ratio"])
    return {
        "lowest_speedup": _named(lowest, speedup=lowest["speedup"]),
        "worst_prompt_speedup": min(row["worst_prompt_speedup"] for row in ours),
        "against_best_other": against,
        "closest": closest,
        "points": len(against),
        "points_ahead": sum(row["ratio"] > 1.0 for row in against),
        "at_main_rtt": [row for row in against if row["rtt_ms"] == main_rtt_ms],
        "at_other_profiles": list(_against_best([row for row in rows if row["part"] == "profile"])),
        "parts": list(_parts(rows)),
        "bounds": list(_bounds(rows)),
        "mismatches": sum(row["mismatches"] for row in rows),
        "violations": sum(row["violations"] for row in rows),
        "tokens": sum(row["tokens"] for row in rows),
    }


def _named(row: Row, **figures: Any) -> dict[str, Any]:
    return {**{name: row[name] for name in PLACE}, **figures}


def _grouped(rows: Sequence[Row]) -> dict[tuple[Any, ...], list[Row]]:
    places: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        places.setdefault(tuple(row[name] for name in PLACE), []).append(row)
    return places


def _against_best(rows: Sequence[Row]) -> Iterator[dict[str, Any]]:
    """Ours by the best of the others, and by tuned speculative decoding, at every place; ratios of total time."""
    for together in _grouped(rows).values():
        speedups = {row["strategy"]: row["speedup"] for row in together}
        ours = speedups.pop(OURS)
        best = max(speedups, key=lambda name: speedups[name])
        ratio = ours / speedups[best]
        yield _named(
            together[0],
            speedup=ours,
            best_other=best,
            best_other_speedup=speedups[best],
            ratio=ratio,
            latency_saved=1.0 - 1.0 / ratio,
            ratio_to_speculative=ours / speedups[BASELINE] if BASELINE in speedups else None,
        )


def _parts(rows: Sequence[Row]) -> Iterator[dict[str, Any]]:
    """What each part brings: by how much the total time grows without it, or what it added to those before it."""
    for together in _grouped([row for row in rows if row["part"] == "ablation"]).values():
        cumulative = [row for row in together if row["order"] == "cumulative"]
        whole = cumulative[-1]
        for before, row in zip([None, *cumulative], cumulative, strict=False):
            gain = row["speedup"] / before["speedup"] if before else row["speedup"]
            yield _named(row, order=row["order"], label=row["label"], speedup=row["speedup"], gain=gain)
        for row in together:
            if row["order"] != "cumulative":
                gain = whole["speedup"] / row["speedup"]
                yield _named(row, order=row["order"], label=row["label"], speedup=row["speedup"], gain=gain)


def _bounds(rows: Sequence[Row]) -> Iterator[dict[str, Any]]:
    """Ours as a share of each bound that knows the stream."""
    for together in _grouped([row for row in rows if row["part"] == "oracle"]).values():
        speedups = {row["label"]: row["speedup"] for row in together}
        ours = speedups.pop("ours")
        for label, speedup in speedups.items():
            yield _named(together[0], label=label, speedup=speedup, share=ours / speedup)
