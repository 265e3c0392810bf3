"""The page of help: keys, commands, options and signs."""

from typing import Final

from rich.columns import Columns
from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.text import Text

from cosine_tui.looks.styled_text import Tone, beside, toned
from cosine_tui.state.prompt_line import COMMANDS, OPTIONS, RESET
from cosine_tui.state.snapshot import EventKind, RequestState

TYPING: Final = (
    ("text", "a prompt; Enter sends it, Up brings back earlier ones"),
    ("Tab", "completes a command or an option; else goes to the next pane"),
    ("Esc", "back to the prompt line, from a page or a pane"),
    ("Up Down", "in a list: select; Enter shows everything about it"),
    ("PgUp PgDn", "scroll"),
    ("Ctrl+P", "the command palette"),
    ("Ctrl+C", "as Ctrl+Q"),
)
"""Keys without a command, and their effects."""
SIGNS: Final = ("● up", "✗ lost", "~ emulated speed", "! full", "a b c drafters", "= copied from the text so far")
"""Signs other than those of request states and events."""


def help_page() -> RenderableType:
    """Return the help on all input."""
    kinds = (*RequestState, *EventKind)
    signs = dict.fromkeys([*(f"{kind.sign} {kind.word}" for kind in kinds), *SIGNS])
    options = [f"--{name} {option.example}" for name, option in OPTIONS.items()]
    hold = f"Before a prompt an option is for that prompt; alone, or as /name value, it holds until /{RESET}."
    sections: dict[str, tuple[RenderableType, ...]] = {
        "TYPING": (beside((toned(f"{key:<9}", Tone.ACCENT), toned(what, Tone.MUTED)) for key, what in TYPING),),
        "COMMANDS": (
            beside(
                (
                    (
                        toned(f"{command.key_label:<9}", Tone.ACCENT),
                        toned(command.usage),
                        toned(command.what, Tone.MUTED),
                    )
                    for command in COMMANDS
                ),
                columns=3,
            ),
        ),
        "OPTIONS": (Columns(map(toned, options), padding=(0, 2)), toned(hold, Tone.MUTED)),
        "SIGNS": (Columns(map(toned, signs), padding=(0, 2)),),
    }
    parts: list[RenderableType] = []
    for heading, body in sections.items():
        parts += [Text(), toned(heading, Tone.HEADING), *(Padding(part, (0, 0, 0, 2)) for part in body)]
    return Group(*parts[1:])
