"""Texts for the screen: exact widths whatever strangers write, nothing that steers a terminal."""

import unicodedata

from hypothesis import given
from hypothesis import strategies as st
from rich.text import Text

from cosine_tui.styled_text import (
    AUTHOR_TONES,
    Tone,
    author_mark,
    author_tone,
    clean,
    clean_text,
    cut,
    fit,
    flow,
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


def test_an_escape_sequence_and_a_bidi_override_become_dots() -> None:
    assert clean("\x1b[31mred\u202e") == "·[31mred·"


def test_copied_text_keeps_its_lines_and_nothing_that_steers() -> None:
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


def test_two_ends_of_a_line_and_the_left_one_gives_way() -> None:
    assert spread(toned("left"), toned("right"), 12).plain == "left   right"
    assert spread(toned("long left"), toned("right"), 12).plain == "long … right"
    assert spread(toned("left"), toned("right"), 3).plain == "ri…"


def test_items_stand_side_by_side_and_none_is_broken() -> None:
    items = [toned("one"), Text.assemble(toned("two"), toned("2")), toned("three")]
    assert flow(items, 80).plain == "one  two2  three"
    assert flow(items, 10, gap=1).plain == "one two2\nthree"


def test_every_drafter_has_a_tone_and_a_letter_and_what_is_copied_a_sign() -> None:
    assert author_tone(0) is Tone.PLAIN and author_tone(0, is_copied=True) is Tone.COPIED
    assert author_tone(1) is author_tone(1 + AUTHOR_TONES)
    assert len({author_tone(number) for number in range(1, AUTHOR_TONES + 1)}) == AUTHOR_TONES
    assert [author_mark(number) for number in (0, 1, 2, 26, 27)] == [" ", "a", "b", "z", "a"]
    assert author_mark(0, is_copied=True) == "="
