"""The two themes, and the colour of each tone in both."""

from typing import Final

from rich.style import Style
from rich.theme import Theme as RichTheme
from textual.theme import Theme

from cosine_tui.looks.styled_text import Tone

# Names of the themes on the command line are these without `cosine-`.
DARK: Final = "cosine-dark"
LIGHT: Final = "cosine-light"

# Colours of the dark and the light theme, with eight authors that are distinct on both backgrounds.
_COLOURS: Final = {
    Tone.PLAIN: ("#d5d9e0", "#24292f"),
    Tone.MUTED: ("#868e9c", "#656d76"),
    Tone.STRONG: ("#ffffff", "#000000"),
    Tone.HEADING: ("#d5d9e0", "#24292f"),
    Tone.GOOD: ("#7fc98f", "#1a7f37"),
    Tone.WARNING: ("#e5b567", "#8a5a00"),
    Tone.BAD: ("#f2777a", "#c0252d"),
    Tone.ACCENT: ("#6cb6ff", "#0a5fc4"),
    Tone.COPIED: ("#9fb0a8", "#5f6f68"),
    Tone.AUTHOR_1: ("#6cb6ff", "#0a5fc4"),
    Tone.AUTHOR_2: ("#e5b567", "#8a5a00"),
    Tone.AUTHOR_3: ("#7fd6b5", "#00705a"),
    Tone.AUTHOR_4: ("#d49be8", "#8431a8"),
    Tone.AUTHOR_5: ("#f09a6e", "#b04300"),
    Tone.AUTHOR_6: ("#a8cf6a", "#4a6b00"),
    Tone.AUTHOR_7: ("#f19bb8", "#a8275f"),
    Tone.AUTHOR_8: ("#9aa7ff", "#4048c0"),
}
_BACKGROUNDS: Final = ("#12151a", "#ffffff")
_RAISED: Final = ("#1b2027", "#f1f3f5")
_RULES: Final = ("#313843", "#d0d7de")

SELECTED: Final = "selected"  # The Rich style of the background of a selected row.


def _theme(name: str) -> Theme:
    which = int(name == LIGHT)
    colours = {tone: both[which] for tone, both in _COLOURS.items()}
    background, raised, rule = _BACKGROUNDS[which], _RAISED[which], _RULES[which]
    return Theme(
        name=name,
        primary=colours[Tone.ACCENT],
        secondary=colours[Tone.AUTHOR_4],
        warning=colours[Tone.WARNING],
        error=colours[Tone.BAD],
        success=colours[Tone.GOOD],
        accent=colours[Tone.ACCENT],
        foreground=colours[Tone.PLAIN],
        background=background,
        surface=raised,
        panel=raised,
        dark=name == DARK,
        variables={
            "rule": rule,
            "muted": colours[Tone.MUTED],
            "strong": colours[Tone.STRONG],
            "footer-background": raised,
            "footer-key-foreground": colours[Tone.ACCENT],
            "footer-description-foreground": colours[Tone.MUTED],
            "scrollbar": rule,
            "scrollbar-background": background,
        },
    )


def _styles(name: str) -> RichTheme:
    which = int(name == LIGHT)
    styles = {tone.value: Style(color=both[which]) for tone, both in _COLOURS.items()}
    for tone in (Tone.STRONG, Tone.HEADING):
        styles[tone] += Style(bold=True)
    styles[Tone.COPIED] += Style(italic=True)
    return RichTheme({**styles, SELECTED: Style(bgcolor=_RULES[which])})


THEMES: Final = {name: (_theme(name), _styles(name)) for name in (DARK, LIGHT)}
"""The theme of the widgets and the styles of their text by name."""
