"""Texts and numbers for the screen: exact widths whatever strangers write, nothing that steers a terminal."""

import unicodedata

from hypothesis import given
from hypothesis import strategies as st
from rich.text import Text

from cosine_tui.looks import formatting
from cosine_tui.looks.styled_text import (
    Tone,
    clean,
    clean_text,
    cut,
    fit,
    spread,
    toned,
    wrap,
)

ANY_TEXT = st.text(max_size=60)
WIDTHS = st.integers(min_value=1, max_value=40)


@given(ANY_TEXT)
def test_a_text_steers_no_terminal(text: str) -> None:
    assert not any(unicodedata.category(letter) in ("Cc", "Cf", "Zl", "Zp") for letter in toned(text).plain)
    assert len(toned(text).plain) == len(text)


def test_what_steers_becomes_dots_and_copied_text_keeps_its_lines() -> None:
    assert clean("\x1b[31mred\u202e") == "·[31mred·"
    assert clean_text("a\n\tb\x1b[2J\r\u202e") == "a\n\tb·[2J··"


@given(ANY_TEXT, WIDTHS, st.sampled_from(("left", "right")))
def test_fitted_text_takes_exactly_its_width(text: str, width: int, align: str) -> None:
    assert fit(text, width, align="left" if align == "left" else "right").cell_len == width


def test_numbers_stand_right_and_what_is_too_long_says_so() -> None:
    shown = (fit("7", 3, align="right"), fit("abc", 5), fit("abcdef", 4), fit("x", 0))
    assert [text.plain for text in shown] == ["  7", "abc  ", "abc…", ""]


@given(ANY_TEXT, ANY_TEXT, WIDTHS)
def test_no_line_sticks_out(first: str, second: str, width: int) -> None:
    both = Text.assemble(toned(first), toned(second, Tone.BAD))
    assert all(line.cell_len <= max(2, width) for line in wrap(both.copy(), width))
    assert spread(toned(first), toned(second), width).cell_len <= width
    assert cut(both, width).cell_len <= width


def test_numbers_have_units_and_no_more_digits_than_they_are_worth() -> None:
    shown = [formatting.milliseconds(value) for value in (None, 0.84, 9.94, 41.2, 999.4, 1234.0)]
    assert shown == ["–", "0.8 ms", "9.9 ms", "41 ms", "999 ms", "1.2 s"]
    assert [formatting.duration(s) for s in (-1, 4.9, 125, 11_220)] == ["0 s", "4 s", "2 min 05 s", "3 h 07 min"]
    assert [formatting.counted(n, "node") for n in (0, 1, 2000)] == ["0 nodes", "1 node", "2,000 nodes"]
    assert [formatting.per_second(rate) for rate in (0, 5.84, 99.94, 1658.7)] == ["0.0", "5.8", "99.9", "1,659"]
    assert [formatting.percent(share) for share in (None, 0.0, 0.415)] == ["–", "0 %", "42 %"]
    sizes = [formatting.file_size(count) for count in (0, 999, 64_200, 3_100_000)]
    assert sizes == ["0 B", "999 B", "64.2 kB", "3.1 MB"]
    assert formatting.short_name("12D3KooWabcdef") == "abcdef"
