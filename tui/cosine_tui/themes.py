"""The two themes, and the colour of every tone in each of them."""

from typing import Final

from textual.theme import Theme

from cosine_tui.styled_text import Tone

# Names of the themes on the command line are these without `cosine-`.
DARK: Final = "cosine-dark"
LIGHT: Final = "cosine-light"

# The colours are choices: eight authors that can be told apart on either background.
_DARK_TONES: Final = {
    Tone.PLAIN: "#d5d9e0",
    Tone.MUTED: "#868e9c",
    Tone.STRONG: "#ffffff",
    Tone.HEADING: "#d5d9e0",
    Tone.GOOD: "#7fc98f",
    Tone.WARNING: "#e5b567",
    Tone.BAD: "#f2777a",
    Tone.ACCENT: "#6cb6ff",
    Tone.COPIED: "#9fb0a8",
    Tone.AUTHOR_1: "#6cb6ff",
    Tone.AUTHOR_2: "#e5b567",
    Tone.AUTHOR_3: "#7fd6b5",
    Tone.AUTHOR_4: "#d49be8",
    Tone.AUTHOR_5: "#f09a6e",
    Tone.AUTHOR_6: "#a8cf6a",
    Tone.AUTHOR_7: "#f19bb8",
    Tone.AUTHOR_8: "#9aa7ff",
}
_LIGHT_TONES: Final = {
    Tone.PLAIN: "#24292f",
    Tone.MUTED: "#656d76",
    Tone.STRONG: "#000000",
    Tone.HEADING: "#24292f",
    Tone.GOOD: "#1a7f37",
    Tone.WARNING: "#8a5a00",
    Tone.BAD: "#c0252d",
    Tone.ACCENT: "#0a5fc4",
    Tone.COPIED: "#5f6f68",
    Tone.AUTHOR_1: "#0a5fc4",
    Tone.AUTHOR_2: "#8a5a00",
    Tone.AUTHOR_3: "#00705a",
    Tone.AUTHOR_4: "#8431a8",
    Tone.AUTHOR_5: "#b04300",
    Tone.AUTHOR_6: "#4a6b00",
    Tone.AUTHOR_7: "#a8275f",
    Tone.AUTHOR_8: "#4048c0",
}


def _theme(name: str, tones: dict[Tone, str], *, is_dark: bool, background: str, raised: str, rule: str) -> Theme:
    return Theme(
        name=name,
        primary=tones[Tone.ACCENT],
        secondary=tones[Tone.AUTHOR_4],
        warning=tones[Tone.WARNING],
        error=tones[Tone.BAD],
        success=tones[Tone.GOOD],
        accent=tones[Tone.ACCENT],
        foreground=tones[Tone.PLAIN],
        background=background,
        surface=raised,
        panel=raised,
        dark=is_dark,
        variables={
            "rule": rule,
            "marked": rule,
            "footer-background": raised,
            "footer-key-foreground": tones[Tone.ACCENT],
            "footer-description-foreground": tones[Tone.MUTED],
            "scrollbar": rule,
            "scrollbar-background": background,
            **{f"tone-{tone.value}": colour for tone, colour in tones.items()},
        },
    )


THEMES: Final = (
    _theme(DARK, _DARK_TONES, is_dark=True, background="#12151a", raised="#1b2027", rule="#313843"),
    _theme(LIGHT, _LIGHT_TONES, is_dark=False, background="#ffffff", raised="#f1f3f5", rule="#d0d7de"),
)
