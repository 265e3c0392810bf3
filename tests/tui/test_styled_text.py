"""Lines of text: exact widths whatever strangers write, nothing that steers a terminal."""

import unicodedata

from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from cosine_tui.styled_text import (
    AUTHOR_TONES,
    Line,
    Span,
    Tone,
    author_mark,
    author_tone,
    clean,
    clean_text,
    cut,
    fit,
    pack,
    spread,
    text_of,
    width_of,
    wrap,
)

ANY_TEXT = st.text(max_size=60)
WIDTHS = st.integers(min_value=1, max_value=40)


@given(ANY_TEXT)
def test_clean_text_steers_no_terminal(text: str) -> None:
    assert not any(unicodedata.category(letter) in ("Cc", "Cf", "Zl", "Zp") for letter in clean(text))
    assert len(clean(text)) == len(text)


def test_an_escape_sequence_and_a_bidi_override_become_dots() -> None:
    assert clean("\x1b[31mred\u202e") == "·[31mred·"


@given(ANY_TEXT, WIDTHS, st.sampled_from(("left", "right")))
def test_fitted_text_takes_exactly_its_width(text: str, width: int, align: str) -> None:
    assert cell_len(fit(text, width, "left" if align == "left" else "right")) == width


def test_numbers_stand_right_and_what_is_too_long_says_so() -> None:
    assert (fit("7", 3, "right"), fit("abc", 5), fit("abcdef", 4), fit("x", 0)) == ("  7", "abc  ", "abc…", "")


@given(st.lists(st.tuples(ANY_TEXT, st.sampled_from(Tone)), max_size=6), WIDTHS)
def test_wrapped_lines_fit_and_nothing_but_spaces_is_lost(parts: list[tuple[str, Tone]], width: int) -> None:
    spans = [Span(text, tone) for text, tone in parts]
    lines = wrap(spans, width)
    assert all(width_of(line) <= width for line in lines)
    if width > 1:
        written = "".join(clean(row) for text, _ in parts for row in text.replace("\t", "    ").split("\n"))
        assert text_of(lines).replace("\n", "").replace(" ", "") == written.replace(" ", "")


def test_text_wraps_at_spaces_and_keeps_its_lines_and_tones() -> None:
    spans = [Span("one two "), Span("thr", Tone.BAD), Span("ee"), Span("\n  four")]
    assert text_of(wrap(spans, 9)) == "one two \nthree\n  four"
    assert wrap(spans, 9)[1] == (Span("thr", Tone.BAD), Span("ee"))


def test_a_word_longer_than_a_line_is_broken() -> None:
    assert text_of(wrap([Span("abcdefg")], 3)) == "abc\ndef\ng"


@given(ANY_TEXT, ANY_TEXT, WIDTHS)
def test_a_cut_line_never_sticks_out(first: str, second: str, width: int) -> None:
    assert width_of(cut((Span(clean(first)), Span(clean(second), Tone.BAD)), width)) <= width


def test_two_ends_of_a_line_and_the_left_one_gives_way() -> None:
    assert text_of([spread((Span("left"),), (Span("right"),), 12)]) == "left   right"
    assert text_of([spread((Span("long left"),), (Span("right"),), 12)]) == "long … right"
    assert text_of([spread((Span("left"),), (Span("right"),), 3)]) == "ri…"


def test_every_drafter_has_a_tone_and_a_letter_and_the_target_neither() -> None:
    assert author_tone(0) is Tone.PLAIN and author_mark(0) == " "
    assert author_tone(1) is author_tone(1 + AUTHOR_TONES)
    assert len({author_tone(number) for number in range(1, AUTHOR_TONES + 1)}) == AUTHOR_TONES
    assert [author_mark(number) for number in (1, 2, 26, 27)] == ["a", "b", "z", "a"]


def test_items_stand_side_by_side_and_none_is_broken() -> None:
    items: list[Line] = [(Span("one"),), (Span("two"), Span("2")), (Span("three"),)]
    assert text_of(pack(items, 80)) == "one  two2  three"
    assert text_of(pack(items, 10, gap=1)) == "one two2\nthree"
    assert text_of(pack(items, 4)) == "one\ntwo2\nthr…" and pack([], 10) == []


def test_copied_text_keeps_its_lines_and_nothing_that_steers() -> None:
    assert clean_text("a\n\tb\x1b[2J\r\u202e") == "a\n\tb·[2J··"


def test_what_is_copied_has_a_sign_and_a_tone_of_its_own() -> None:
    assert [author_mark(0), author_mark(0, is_copied=True), author_mark(1)] == [" ", "=", "a"]
    assert author_tone(0, is_copied=True) is Tone.COPIED and author_tone(0) is Tone.PLAIN
