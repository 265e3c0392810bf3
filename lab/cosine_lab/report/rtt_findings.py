"""Findings from the rows of the sweep over round-trip times."""

from collections.abc import Iterator, Sequence
from typing import Final

from cosine_lab.experiments.ablation import CUMULATIVE
from cosine_lab.experiments.entrants import OURS
from cosine_lab.experiments.experiment import JsonRow, grouped, sum_of_checks
from cosine_lab.report.intervals import ratio_and_interval

REMOTE: Final = "cosine, no drafter at the verifier"
ALONE: Final = "a drafter at the verifier, nobody else"
EQUIPPED: Final = ", the same drafter and copying at the verifier"
BESIDE: Final = ", beside the verifier"
"""Labels of rows, the last two after the name of a rival."""
PLACE: Final = ("profile", "temperature", "rtt_ms")
"""The fields that name a point of the sweep."""
BASELINE: Final = "speculative"
"""Synchronous speculative decoding, which everybody knows."""
NEAR_MS: Final = 50.0
"""A choice: up to here, about the width of a continent, drafters elsewhere are to pay."""


def findings_of(rows: Sequence[JsonRow], *, main_rtt_ms: float, seed: int) -> JsonRow:
    """The floor against plain decoding, the distance to the best other everywhere, the parts and the bounds."""

    def part(name: str) -> list[JsonRow]:
        return [row for row in rows if row["part"] == name]

    sweep = part("sweep")
    ours = [row for row in sweep if row["strategy"] == OURS.name]
    lowest = min(ours, key=lambda row: row["speedup"])
    against = list(_against_best(sweep, seed=seed))
    near = [row for row in against if row["rtt_ms"] <= NEAR_MS]
    return {
        "lowest_speedup": {name: lowest[name] for name in (*PLACE, "speedup", "interval")},
        "worst_prompt_speedup": min(row["worst_prompt_speedup"] for row in ours),
        "against_best_other": against,
        "closest": min(against, key=lambda row: row["ratio"]),
        "closest_of_near": [min(near, key=lambda row: row["ratio"])] if near else [],
        "points": len(against),
        "points_ahead": sum(row["ratio"] > 1.0 for row in against),
        "at_main_rtt": [row for row in against if row["rtt_ms"] == main_rtt_ms],
        "at_other_profiles": list(_against_best(part("profile"), seed=seed)),
        "parts": list(_parts(part("ablation"))),
        "bounds": list(_bounds(part("oracle"))),
        **sum_of_checks(rows),
        "tokens": sum(row["tokens"] for row in rows),
    }


def _against_best(rows: Sequence[JsonRow], *, seed: int) -> Iterator[JsonRow]:
    """Ours by the best of the others, and by tuned speculative decoding, at every point; ratios of total time."""
    for place, together in grouped(rows, *PLACE).items():
        by_strategy = {row["strategy"]: row for row in together if row["strategy"] != REMOTE}
        ours = by_strategy.pop(OURS.name)
        best = max(by_strategy.values(), key=lambda row: float(row["speedup"]))
        found = ratio_and_interval(best["prompt_s"], ours["prompt_s"], seed=seed)
        baseline = by_strategy.get(BASELINE)
        yield {
            **dict(zip(PLACE, place, strict=True)),
            "speedup": ours["speedup"],
            "best_other": best["strategy"],
            "best_other_speedup": best["speedup"],
            **found,
            "latency_saved": 1.0 - 1.0 / found["ratio"],
            "ratio_to_speculative": ours["speedup"] / baseline["speedup"] if baseline else None,
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
