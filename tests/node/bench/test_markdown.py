"""Numbers as people read them, and tables that no text can break."""

import pytest

from cosine_node.bench.markdown import bullets, paragraphs, percent, shown, table, times, words


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


def test_pieces() -> None:
    assert (times(1.525), percent(0.234), words("bytes_per_token")) == ("1.52x", "23 %", "bytes per token")
    assert bullets(["One.", "Two."]) == "- One.\n- Two."
    assert paragraphs(["a", "", "b"]) == "a\n\nb"
