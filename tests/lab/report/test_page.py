"""The page and its figures are made only of published results, and the figures are reproducible byte by byte."""

from pathlib import Path

import pytest

from cosine_lab.report import page
from cosine_protocol.errors import UsageError
from tests.docs.pages import DOCS

RESULTS = DOCS / "benchmarks"


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
