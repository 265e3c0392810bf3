"""The figure of the sweep: rivals at their best and as published, never both in one panel."""

from typing import Any

from cosine_lab.report.markdown import filled
from cosine_lab.report.plots import LinePlot
from cosine_lab.report.report_rtt import RTT, at_their_best
from cosine_lab.report.rtt_findings import ALONE, BESIDE, EQUIPPED, REMOTE

STRATEGIES = ("plain", "cosine", REMOTE, ALONE, "spin", f"spin{BESIDE}", "dsi", f"dsi{EQUIPPED}")


def result() -> dict[str, Any]:
    rows = [{"part": "sweep", "strategy": name, "profile": "60/6", "temperature": 0.0} for name in STRATEGIES]
    return {"rows": [*rows, {"part": "more", "strategy": "dsi-2"}]}


def test_plain_decoding_and_cosine_stand_in_both_panels_and_each_rival_in_one() -> None:
    panels: dict[str, list[str]] = {}
    for row in at_their_best(result()):
        panels.setdefault(row["rivals"], []).append(row["strategy"])
    assert panels == {
        "rivals at their best": ["plain", "cosine", ALONE, f"spin{BESIDE}", f"dsi{EQUIPPED}"],
        "rivals as published": ["plain", "cosine", "spin", "dsi"],
    }


def test_a_panel_is_told_from_the_other() -> None:
    figure = RTT.figures[0]
    assert isinstance(figure, LinePlot)
    assert len({filled(figure.panel, row) for row in at_their_best(result())}) == 2
