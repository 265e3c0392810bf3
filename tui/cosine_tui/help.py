"""The page of help: keys, commands, options and signs."""

from collections.abc import Iterable, Iterator
from typing import Final

from cosine_tui.commands import COMMANDS
from cosine_tui.prompt_line import OPTIONS, RESET
from cosine_tui.snapshot import EventKind, RequestState
from cosine_tui.styled_text import BLANK, Line, Span, Tone, fit, pack, wrap

TYPING: Final = (
    ("text", "a prompt; Enter sends it, Up brings back earlier ones"),
    ("Tab", "completes a command or an option; else goes to the next pane"),
    ("Esc", "back to the prompt line, from a page or a pane"),
    ("Up Down", "in a list: select; Enter shows everything about it"),
    ("PgUp PgDn", "scroll"),
    ("Ctrl+P", "the command palette"),
    ("Ctrl+C", "as Ctrl+Q"),
)
"""Keys that are no commands, and what they do."""
SIGNS: Final = ("● up", "✗ lost", "~ emulated speed", "! full", "a b c drafters", "= copied from the text so far")
"""Signs that are neither of a request's state nor of an event."""
_KEY: Final = 11
_NAME: Final = 17


def help_lines(width: int) -> list[Line]:
    """Everything that can be typed or pressed, long texts wrapped."""
    states = [f"{state.sign} {state.word}" for state in RequestState]
    events = [f"{kind.sign} {kind.word}" for kind in EventKind]
    options = [f"--{name} {example}" for name, example in OPTIONS.items()]
    hold = f"Before a prompt an option is for that prompt; alone, or as /name value, it holds until /{RESET}."
    return [
        *_heading("TYPING"),
        *(line for key, what in TYPING for line in _row("", key, what, width)),
        *_heading("COMMANDS"),
        *(line for command in COMMANDS for line in _row(command.usage, command.key_label, command.what, width)),
        *_heading("OPTIONS"),
        *_items(options, width),
        *((Span("  "), *line) for line in wrap([Span(hold, Tone.MUTED)], width - 2)),
        *_heading("SIGNS"),
        *_items(dict.fromkeys([*states, *events, *SIGNS]), width),
    ][1:]


def _heading(text: str) -> tuple[Line, Line]:
    return BLANK, (Span(text, Tone.HEADING),)


def _row(name: str, key: str, what: str, width: int) -> Iterator[Line]:
    """A key, the command it stands for if it does, and what that does."""
    head = (Span("  " + fit(key, _KEY), Tone.ACCENT), *((Span(fit(name, _NAME)),) if name else ()))
    indent = 2 + _KEY + (_NAME if name else 0)
    first, *rest = wrap([Span(what, Tone.MUTED)], max(10, width - indent))
    yield (*head, *first)
    for line in rest:
        yield (Span(" " * indent), *line)


def _items(items: Iterable[str], width: int) -> list[Line]:
    return [(Span("  "), *line) for line in pack([(Span(item),) for item in items], width - 2)]
