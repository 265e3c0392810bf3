"""Figures: the same bytes for the same numbers, one colour a strategy, one sentence without matplotlib."""

import json
import sys
from pathlib import Path

import pytest

from cosine_lab.experiments.entrants import ENTRANTS
from cosine_lab.report import plots
from cosine_lab.report.report_sections import SECTIONS
from cosine_protocol.errors import UsageError
from tests.docs.pages import DOCS

FIGURES = [(name, figure) for name, section in SECTIONS.items() for figure in section.figures]


@pytest.mark.parametrize(("experiment", "figure"), [pytest.param(*one, id=one[1].name) for one in FIGURES])
def test_a_figure_of_what_was_published_is_an_svg_that_does_not_change(
    experiment: str, figure: plots.LinePlot | plots.BarPlot, tmp_path: Path
) -> None:
    result = json.loads((DOCS / "benchmarks" / f"{experiment}.json").read_text("utf-8"))
    for place in ("one.svg", "other.svg"):
        figure.draw(figure.of(result), tmp_path / place)
    drawn = (tmp_path / "one.svg").read_text("utf-8")
    assert "<svg" in drawn
    assert drawn == (tmp_path / "other.svg").read_text("utf-8")
    assert (DOCS / "benchmarks" / f"{figure.name}.svg").is_file()


def test_every_strategy_has_a_colour_and_a_marker_of_its_own() -> None:
    assert ENTRANTS.keys() <= plots.STYLES.keys()
    colours, markers = zip(*plots.STYLES.values(), strict=True)
    assert len(set(colours)) == len(set(markers)) == len(plots.STYLES)


def test_without_matplotlib_one_sentence_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(UsageError, match=r"pip install '\.\[bench\]'"):
        FIGURES[0][1].draw([], tmp_path / "x.svg")


def test_what_stands_for_a_strategy_has_its_style_unless_it_stands_there_itself() -> None:
    rows = [{"by": name} for name in ("cosine", "cosine, with more", "dsi, with more", "something else")]
    styles = plots.styles_of(rows, "{by}")
    assert styles["dsi, with more"] == plots.STYLES["dsi"]
    assert styles["cosine"] == plots.STYLES["cosine"]
    assert len(set(styles.values())) == len(rows)
