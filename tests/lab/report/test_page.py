"""The page and its figures are made only of published results, and the figures are reproducible byte by byte."""

import json
from importlib import import_module
from pathlib import Path

import pytest

from cosine_lab.report import page, plots
from cosine_protocol.errors import UsageError
from tests.docs.pages import DOCS

RESULTS = DOCS / "benchmarks"
FIGURES = [(name, one) for name in page.DRAWN for one in import_module(f"cosine_lab.experiments.{name}").FIGURES]


def test_the_page_is_what_the_results_make_it() -> None:
    assert page.page_of(page.read_results(RESULTS), "benchmarks") == (DOCS / "benchmarks.md").read_text("utf-8")


def test_every_place_of_the_page_has_a_figure() -> None:
    results = page.read_results(RESULTS)
    places = page.PLACE.findall(page.text_for(results))
    assert places
    assert [place for place in places if page.figure_at(" ".join(place.split("\n")), results) is None] == []


@pytest.mark.parametrize(
    ("content", "sentence"),
    [(None, "There are no results"), ("{}", "is not the result of an experiment"), ("{", "cannot be read")],
)
def test_what_is_no_result_is_one_sentence(content: str | None, sentence: str, tmp_path: Path) -> None:
    if content is not None:
        (tmp_path / "rtt.json").write_text(content)
    with pytest.raises(UsageError, match=sentence):
        page.read_results(tmp_path)


def test_people_read_what_was_found_as_sentences_and_tables() -> None:
    said = "\n".join(page.lines_of(page.read_results(RESULTS)["ring"]))
    assert "lowest speedup: " in said and "\nagainst:\n| way " in said and "\n| cosine " in said
    assert [plots.shown(one) for one in (None, True, 1234.5, 0.12345, [1.0, 2.5])] == [
        *("-", "yes", "1,234", "0.123", "1, 2.5")
    ]


@pytest.mark.thorough
@pytest.mark.parametrize(("experiment", "figure"), [pytest.param(*one, id=one[1].name) for one in FIGURES[:2]])
def test_a_figure_is_the_same_bytes_again(experiment: str, figure: plots.LinePlot, tmp_path: Path) -> None:
    result = json.loads((RESULTS / f"{experiment}.json").read_text("utf-8"))
    for place in ("one.svg", "other.svg"):
        figure.draw(figure.of(result), tmp_path / place)
    drawn = (tmp_path / "one.svg").read_text("utf-8")
    assert "<svg" in drawn and drawn == (tmp_path / "other.svg").read_text("utf-8")
