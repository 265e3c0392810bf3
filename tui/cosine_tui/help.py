"""The help screen."""

from collections.abc import Sequence
from typing import ClassVar, Final

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.screen import ModalScreen
from textual.widgets import Static

from cosine_tui.prompt_line import OPTIONS
from cosine_tui.snapshot import EventKind, RequestState

# The rows of the screen and its width in cells: it must fit 80x24.
COLUMNS: Final = 70
KEYS: Final = (
    ("1 2 3 4", "swarm, who drafts for whom, request, events"),
    ("Tab", "next pane; arrows and PgUp/PgDn scroll"),
    ("p", "type a prompt; Enter sends it, Up brings back earlier ones"),
    ("/", "type an option, for example /temperature 0.8"),
    ("Esc", "leave the prompt"),
    ("x", "cancel the request that is shown, if it is yours"),
    ("[ ] }", "the request before, after; whatever is written now"),
    ("d", "full peer ids and more of every node"),
    ("m", "each drafter's letter before its tokens"),
    ("t", "dark or light"),
    ("q Ctrl+C", "quit"),
)
SIGNS: Final = ("● up", "✗ lost", "~ emulated speed", "! full", "a b c drafters")


def help_text() -> str:
    """Keys, prompt options and signs, on 80x24 without scrolling."""
    states = [f"{state.sign} {state.word}" for state in RequestState]
    events = [f"{kind.sign} {kind.word}" for kind in EventKind]
    return "\n".join(
        (
            "KEYS",
            *(f"  {key:<9} {what}" for key, what in KEYS),
            "",
            "OPTIONS, each holds until changed",
            *_rows([f"/{name} {example}".rstrip() for name, example in OPTIONS.items()]),
            "",
            "SIGNS",
            *_rows(list(dict.fromkeys([*states, *events, *SIGNS]))),
        )
    )


def _rows(items: Sequence[str]) -> list[str]:
    """Items side by side, none of them broken."""
    rows = [""]
    for item in items:
        if len(rows[-1]) + 2 + len(item) > COLUMNS:
            rows.append("")
        rows[-1] += f"  {item}"
    return rows


class HelpScreen(ModalScreen[None]):
    """Shown over the panes until a key closes it."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,question_mark,q", "dismiss", "Close"),
    ]

    def compose(self) -> ComposeResult:
        with VerticalScroll(id="help"):
            yield Static(help_text(), markup=False)
