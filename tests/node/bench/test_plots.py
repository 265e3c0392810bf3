"""Figures: the same bytes for the same numbers, one colour a strategy, one sentence without matplotlib."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cosine_node.bench import plots
from cosine_node.bench.entrants import ENTRANTS
from cosine_protocol.errors import UsageError

SWEEP = {
    "rows": [
        {"part": "sweep", "strategy": s, "temperature": t, "rtt_ms": rtt, "speedup": 1.0 + rtt / 100}
        for s in ("plain", "cosine", "newcomer")
        for t in (0.0, 0.8)
        for rtt in (0.0, 20.0, 100.0)
    ]
}
ABLATION = {
    "rows": [
        {"part": "ablation", "order": order, "label": label, "temperature": 0.0, "rtt_ms": 20.0, "speedup": 1.5}
        for order, label in (("cumulative", "a chain"), ("single", "without a tree"))
    ]
}
ACCEPTANCE = {
    "rows": [
        {"temperature": 0.0, "drafter": drafter, "domain": domain, "first_choice": 0.4}
        for drafter in ("draft-code", "draft-math")
        for domain in ("code", "math")
    ]
}
SCALE = {
    "rows": [
        {
            "nodes": nodes,
            "stream_bytes_per_client": 5e4,
            "client_bytes_read": 100.0 * nodes,
            "records_per_key_max": 12,
            "records_per_key_mean": 3.5,
        }
        for nodes in (100, 1000)
    ]
}
CROWD = {
    "rows": [
        {
            "load": load,
            "profile": "60/6",
            "temperature": 0.0,
            "strategy": strategy,
            "request_p50_ms": 2000.0,
            "request_p95_ms": 5000.0,
            "request_ms": [1000.0, 5000.0, 2000.0],
        }
        for load in ("latency", "saturated")
        for strategy in ("plain", "cosine")
    ]
}
FIGURES = [
    (plots.speedup_by_rtt, SWEEP, "newcomer"),
    (plots.ablation_bars, ABLATION, "without a tree"),
    (plots.acceptance_matrix, ACCEPTANCE, "draft-math"),
    (plots.growth, SCALE, "live nodes"),
    (plots.latencies, CROWD, "p50 to p95"),
    (plots.distribution, CROWD, "share of requests"),
]


@pytest.mark.parametrize(("draw", "result", "text"), FIGURES)
def test_a_figure_is_an_svg_that_does_not_change(
    draw: Callable[[dict[str, Any], Path], None], result: dict[str, Any], text: str, tmp_path: Path
) -> None:
    for name in ("one.svg", "other.svg"):
        draw(result, tmp_path / name)
    drawn = (tmp_path / "one.svg").read_text("utf-8")
    assert "<svg" in drawn
    assert text in drawn
    assert drawn == (tmp_path / "other.svg").read_text("utf-8")


def test_every_strategy_has_a_colour_and_a_marker_of_its_own() -> None:
    assert ENTRANTS.keys() <= plots.COLOURS.keys()
    assert len(set(plots.COLOURS.values())) == len(plots.COLOURS)
    assert len(set(plots.MARKERS.values())) == len(plots.MARKERS)


def test_without_matplotlib_one_sentence_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(UsageError, match=r"install cosine-p2p\[bench\]"):
        plots.acceptance_matrix(ACCEPTANCE, tmp_path / "x.svg")
