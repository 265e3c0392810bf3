"""Findings from the rows of the sweep over round-trip times."""

from collections.abc import Iterator, Sequence
from typing import Final

from cosine_node.bench.ablation import CUMULATIVE
from cosine_node.bench.entrants import OURS
from cosine_node.bench.experiment import JsonRow, grouped, sum_of_checks

PLACE: Final = ("profile", "temperature", "rtt_ms")
"""The fields that name a point of the sweep."""
BASELINE: Final = "speculative"
"""Synchronous speculative decoding, which everybody knows."""


def findings_of(rows: Sequence[JsonRow], *, main_rtt_ms: float) -> JsonRow:
    """The floor against plain decoding, the distance to the best other everywhere, the parts and the bounds."""

    def part(name: str) -> list[JsonRow]:
        return [row for row in rows if row["part"] == name]

    sweep = part("sweep")
    ours = [row for row in sweep if row["strategy"] == OURS.name]
    lowest = min(ours, key=lambda row: row["speedup"])
    against = list(_against_best(sweep))
    return {
        "lowest_speedup": {name: lowest[name] for name in (*PLACE, "speedup")},
        "worst_prompt_speedup": min(row["worst_prompt_speedup"] for row in ours),
        "against_best_other": against,
        "closest": min(against, key=lambda row: row["ratio"]),
        "points": len(against),
        "points_ahead": sum(row["ratio"] > 1.0 for row in against),
        "at_main_rtt": [row for row in against if row["rtt_ms"] == main_rtt_ms],
        "at_other_profiles": list(_against_best(part("profile"))),
        "parts": list(_parts(part("ablation"))),
        "bounds": list(_bounds(part("oracle"))),
        **sum_of_checks(rows),
        "tokens": sum(row["tokens"] for row in rows),
    }


def _against_best(rows: Sequence[JsonRow]) -> Iterator[JsonRow]:
    """Ours by the best of the others, and by tuned speculative decoding, at every point; ratios of total time."""
    for place, together in grouped(rows, *PLACE).items():
        speedups = {row["strategy"]: row["speedup"] for row in together}
        ours = speedups.pop(OURS.name)
        best = max(speedups, key=lambda name: speedups[name])
        ratio = ours / speedups[best]
        yield {
            **dict(zip(PLACE, place, strict=True)),
            "speedup": ours,
            "best_other": best,
            "best_other_speedup": speedups[best],
            "ratio": ratio,
            "latency_saved": 1.0 - 1.0 / ratio,
            "ratio_to_speculative": ours / speedups[BASELINE] if BASELINE in speedups else None,
        }


def _parts(rows: Sequence[JsonRow]) -> Iterator[JsonRow]:
    """The gain of each part: over what stands above it when parts are added, over all else when one is left out."""
    for together in grouped(rows, *PLACE).values():
        cumulative = [row["speedup"] for row in together if row["order"] == CUMULATIVE]
        gains = [after / before for before, after in zip([1.0, *cumulative], cumulative, strict=False)]
        gains += [cumulative[-1] / row["speedup"] for row in together[len(cumulative) :]]
        for row, gain in zip(together, gains, strict=True):
            yield {**{name: row[name] for name in (*PLACE, "order", "label", "speedup")}, "gain": gain}


def _bounds(rows: Sequence[JsonRow]) -> Iterator[JsonRow]:
    """Ours as a share of each bound that knows the stream."""
    for together in grouped(rows, *PLACE).values():
        ours, *bounds = together
        for row in bounds:
            share = ours["speedup"] / row["speedup"]
            yield {**{name: row[name] for name in (*PLACE, "label", "speedup")}, "share": share}
