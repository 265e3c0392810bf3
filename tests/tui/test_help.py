"""The page of help: complete at every width."""

import pytest

from cosine_tui.commands import COMMANDS
from cosine_tui.help import TYPING, help_lines
from cosine_tui.prompt_line import OPTIONS
from cosine_tui.snapshot import EventKind, RequestState
from cosine_tui.styled_text import text_of, width_of


@pytest.mark.parametrize("width", [46, 78, 158])
def test_it_names_everything_and_nothing_is_cut(width: int) -> None:
    lines = help_lines(width)
    text = text_of(lines)
    words = " ".join(text.split())
    assert max(map(width_of, lines)) <= width and text.count("…") == 1  # it is the sign of a state
    for command in COMMANDS:
        assert command.usage in text and command.key_label in text
    assert all(f"--{name} " in text for name in OPTIONS)
    assert all(f"{state.sign} {state.word}" in words for state in (*RequestState, *EventKind))


def test_a_wide_page_needs_no_wrapping() -> None:
    text = text_of(help_lines(110))
    assert all(command.what in text for command in COMMANDS) and all(what in text for _, what in TYPING)
