"""Numbers as people read them, and tables that no text can break."""

import pytest

from cosine_node.bench.markdown import (
    bullets,
    paragraphs,
    percent,
    pivot,
    shown,
    spread,
    table,
    times,
    verdict,
    words,
)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "-"),
        (True, "yes"),
        (0.061234, "0.061"),
        (1.5, "1.50"),
        (2.0, "2"),
        (1234.5, "1,234"),
        (0.00012, "0.00012"),
        (7, "7"),
        ("a|b", "a\\|b"),
        ({"b": 1, "a": None}, '`{"a": null, "b": 1}`'),
    ],
)
def test_values_are_shown_in_few_figures(value: object, text: str) -> None:
    assert shown(value) == text


def test_numbers_stand_to_the_right() -> None:
    assert table(["name", "x"], [["a", 1], ["b", 2.25]]) == "\n".join(
        ["| name | x |", "| --- | --: |", "| a | 1 |", "| b | 2.25 |"]
    )


def test_a_pivot_has_a_line_for_each_value_down_and_a_column_for_each_across() -> None:
    rows = [{"who": "a", "t": 0, "x": 1}, {"who": "a", "t": 1, "x": 2}, {"who": "b", "t": 1, "x": 3}]
    made = pivot("who", rows, down="who", across=lambda row: f"T {row['t']}", cell=lambda row: row["x"])
    assert made.splitlines() == ["| who | T 0 | T 1 |", "| --- | --- | --: |", "| a | 1 | 2 |", "| b | - | 3 |"]


def test_pieces() -> None:
    assert (times(1.525), percent(0.234), words("bytes_per_token")) == ("1.52x", "23 %", "bytes per token")
    assert verdict(False, "2x") == "The target, 2x, is not met."
    assert (spread([2.0, 1.0], times), spread([1.001, 1.0], times)) == ("1.00x to 2.00x", "1.00x")
    assert bullets(["One.", "Two."]) == "- One.\n- Two."
    assert paragraphs(["a", "", "b"]) == "a\n\nb"
