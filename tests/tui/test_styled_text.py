"""Texts and numbers for the screen: exact widths for any text, and no control characters."""

import unicodedata

from hypothesis import given
from hypothesis import strategies as st
from rich.text import Text

from cosine_tui.looks.styled_text import Tone, clean, clean_text, cut, fit, spread, toned, wrap

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


@given(ANY_TEXT, ANY_TEXT, WIDTHS)
def test_no_line_sticks_out(first: str, second: str, width: int) -> None:
    both = Text.assemble(toned(first), toned(second, Tone.BAD))
    assert all(line.cell_len <= max(2, width) for line in wrap(both.copy(), width))
    assert spread(toned(first), toned(second), width).cell_len <= width
    assert cut(both, width).cell_len <= width
