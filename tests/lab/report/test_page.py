"""The page and its figures are made of published results and nothing else; figures are the same bytes again."""

import json
import sys
from importlib import import_module
from pathlib import Path

import pytest

from cosine_lab.experiments.entrants import ENTRANTS
from cosine_lab.report import page, plots
from cosine_protocol.errors import UsageError
from tests.docs.pages import DOCS
from tests.lab.experiments.quick import quick_result

RESULTS = DOCS / "benchmarks"
FIGURES = [(name, one) for name in page.DRAWN for one in import_module(f"cosine_lab.experiments.{name}").FIGURES]


def test_the_page_is_what_the_results_make_it() -> None:
    assert page.page_of(page.read_results(RESULTS), "benchmarks") == (DOCS / "benchmarks.md").read_text("utf-8")


def test_every_place_of_the_page_has_a_figure() -> None:
    results = page.read_results(RESULTS)
    places = page.PLACE.findall(page.text_for(results))
    assert len(places) > 80
    assert [place for place in places if page.figure_at(" ".join(place.split("\n")), results) is None] == []


def test_a_figure_is_that_of_the_one_entry_with_these_values() -> None:
    rows = [{"way": "a, or b", "rtt_ms": 0.0, "speedup": 2.0}, {"way": "a, or b", "rtt_ms": 20.0, "speedup": 1.5}]
    results = {"x": {"rows": rows, "findings": {"mismatches": 0}}}
    assert page.figure_at("x > rows > way=a, or b & rtt_ms=20 > speedup", results) == 1.5
    assert page.figure_at("x > findings > mismatches", results) == 0
    for place in ("x > rows > way=c > speedup", "x > rows > rtt_ms=20 > none", "y > rows", "x > rows > none=1"):
        assert page.figure_at(place, results) is None


def test_a_list_of_entries_is_a_table() -> None:
    entries = [{"way": "copying", "times_plain": 1.25}, {"times_plain": 2.0, "way": "cosine"}]
    assert page.is_table(entries)
    assert page.table_of(entries) == [
        "| way     | times plain |",
        "|---------|-------------|",
        "| copying | 1.25        |",
        "| cosine  | 2           |",
    ]
    assert not any(page.is_table(one) for one in ([], [1.0, 2.0], {"way": 1}, [{"a": 1}, {"b": 1}]))


def test_a_section_stands_on_the_page_where_its_results_are(tmp_path: Path) -> None:
    folder = tmp_path / "benchmarks"
    folder.mkdir()
    (folder / "ring.json").write_text(json.dumps(quick_result("ring")))
    text = page.write_report(folder).read_text("utf-8")
    assert "## A model in parts" in text and "rtt.json" not in text
    assert (folder / "ring.svg").is_file()
    said = "\n".join(page.lines_of(quick_result("ring")))
    assert "lowest speedup: " in said and "\nagainst:\n| way " in said and "\n| cosine " in said


@pytest.mark.parametrize(
    ("content", "sentence"),
    [(None, "There are no results"), ("{}", "is not the result of an experiment"), ("{", "cannot be read")],
)
def test_what_is_no_result_is_one_sentence(content: str | None, sentence: str, tmp_path: Path) -> None:
    if content is not None:
        (tmp_path / "rtt.json").write_text(content)
    with pytest.raises(UsageError, match=sentence):
        page.read_results(tmp_path)


@pytest.mark.thorough
@pytest.mark.parametrize(("experiment", "figure"), [pytest.param(*one, id=one[1].name) for one in FIGURES])
def test_a_figure_is_the_same_bytes_again(experiment: str, figure: plots.LinePlot, tmp_path: Path) -> None:
    result = json.loads((RESULTS / f"{experiment}.json").read_text("utf-8"))
    for place in ("one.svg", "other.svg"):
        figure.draw(figure.of(result), tmp_path / place)
    drawn = (tmp_path / "one.svg").read_text("utf-8")
    assert "<svg" in drawn
    assert drawn == (tmp_path / "other.svg").read_text("utf-8")
    assert (RESULTS / f"{figure.name}.svg").is_file()


def test_every_strategy_has_a_style_of_its_own_which_stands_for_its_variants_too() -> None:
    assert ENTRANTS.keys() <= plots.STYLES.keys()
    colours, markers = zip(*plots.STYLES.values(), strict=True)
    assert len(set(colours)) == len(set(markers)) == len(plots.STYLES)
    rows = [{"by": name} for name in ("cosine", "cosine, with more", "dsi, with more", "something else")]
    styles = plots.styles_of(rows, "{by}")
    assert styles["dsi, with more"] == plots.STYLES["dsi"]
    assert len(set(styles.values())) == len(rows)


@pytest.mark.parametrize(
    ("value", "text"),
    [(None, "-"), (True, "yes"), (1234, "1,234"), (1234.5, "1,234"), (0.12345, "0.123"), ([1.0, 2.5], "1, 2.5")],
)
def test_numbers_have_three_significant_figures(value: object, text: str) -> None:
    assert plots.shown(value) == text


def test_without_matplotlib_one_sentence_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(UsageError, match=r"pip install '\.\[lab\]'"):
        FIGURES[0][1].draw([], tmp_path / "x.svg")
