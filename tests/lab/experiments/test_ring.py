"""The experiment on a target in parts: its runs, and its findings on the rows."""

from typing import Any

import pytest

from cosine_lab.experiments.ring import CHAIN, CHUNKS, OBJECTIONS, RIVALS, TOLD, TREE, findings_of
from tests.lab.experiments.quick import quick_result

WAYS = ["plain", *RIVALS, "cosine", *OBJECTIONS]


@pytest.mark.thorough
def test_every_way_gives_the_targets_text_over_the_ring() -> None:
    result = quick_result("ring")
    assert [row["way"] for row in result["rows"]] == WAYS
    assert result["findings"]["mismatches"] == result["findings"]["violations"] == 0
    for row in result["rows"]:
        low, high = row["tokens_per_s_interval"]
        assert low <= row["tokens_per_s"] <= high


def row(way: str, tokens_per_s: float) -> dict[str, Any]:
    return {
        "way": way,
        "temperature": 0.0,
        "traversal_ms": 200.0,
        "tokens_per_s": tokens_per_s,
        "speedup": tokens_per_s / 5.0,
        "prompt_s": [100.0 / tokens_per_s] * 2,
        "mismatches": 0,
        "violations": 0,
    }


def test_what_ships_is_held_against_the_best_rival_and_the_limit_of_coverage() -> None:
    rows = [row("plain", 5.0), row(CHAIN, 4.0), row(TREE, 10.0), row(CHUNKS, 8.0), row("cosine", 20.0)]
    found = findings_of([*rows, row(TOLD, 40.0)], {0.0: {"covered": 0.9}}, seed=0)
    [entry] = found["against"]
    assert (entry["best_rival"], entry["ratio"]) == (TREE, pytest.approx(2.0))
    assert found["lowest_speedup"] == 4.0
    [limit] = found["limits"]
    assert limit["bound"] == pytest.approx(1.0 / (0.1 * 0.2))
    assert limit["told_which_are_right"] == 40.0
