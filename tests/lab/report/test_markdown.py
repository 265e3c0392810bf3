"""Numbers as people read them, and tables that no text can break."""

import pytest

from cosine_lab.report.markdown import filled, pivot, shown, table, words


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "-"),
        (True, "yes"),
        (0.061234, "0.0612"),
        (1.5, "1.5"),
        (2.0, "2"),
        (1234.5, "1,234"),
        (0.00012, "0.00012"),
        (7, "7"),
        (10_000, "10,000"),
        ([1, 2.5], "1, 2.5"),
        ("a|b", "a\\|b"),
    ],
)
def test_values_are_shown_in_few_figures(value: object, text: str) -> None:
    assert shown(value) == text


def test_numbers_stand_to_the_right() -> None:
    assert table(["name", "x"], [["a", 1], ["b", 2.25]]) == "\n".join(
        ["| name | x |", "| --- | --: |", "| a | 1 |", "| b | 2.25 |"]
    )


def test_a_pivot_has_a_line_for_each_text_down_and_a_column_for_each_across() -> None:
    rows = [{"who": "a", "t": 0, "x": 1}, {"who": "a", "t": 1, "x": 2}, {"who": "b", "t": 1, "x": 3}]
    made = pivot(rows, down="{who}", across="T {t}", cell="{x} s")
    assert made.splitlines() == ["|  | T 0 | T 1 |", "| --- | --- | --- |", "| a | 1 s | 2 s |", "| b | - | 3 s |"]


def test_a_template_is_filled_in_with_what_is_shown() -> None:
    assert filled("{ratio} at {rtt_ms} ms", {"ratio": 1.5251, "rtt_ms": 20.0}) == "1.53 at 20 ms"
    with pytest.raises(KeyError, match="ratio"):
        filled("{ratio}", {})


def test_fields_are_words() -> None:
    assert words("bytes_per_token") == "bytes per token"
