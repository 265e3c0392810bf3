"""The pane of events, the latest first."""

from typing import Final

from cosine_tui import formatting
from cosine_tui.snapshot import EventKind, Snapshot
from cosine_tui.styled_text import Line, Span, Tone, fit, wrap

_WORD: Final = 13
"""Cells of an event's sign and word: the longest word is `unreachable`."""


def event_lines(snapshot: Snapshot, width: int) -> list[Line]:
    """One event a paragraph: its time, sign, word and text."""
    if not snapshot.events:
        return [(Span("Nothing has happened yet.", Tone.MUTED),)]
    lines: list[Line] = []
    for event in reversed(snapshot.events):
        time = formatting.clock(event.at_s, snapshot.began_unix_s) + "  "
        word = f"{event.kind.sign} {fit(event.kind.word, _WORD - 2)} "
        indent = len(time) + _WORD + 1
        text = wrap([Span(event.text)], max(10, width - indent))
        lines.append((Span(time, Tone.MUTED), Span(word, _tone(event.kind)), *text[0]))
        lines += [(Span(" " * indent), *line) for line in text[1:]]
    return lines


def _tone(kind: EventKind) -> Tone:
    if kind.is_alert:
        return Tone.WARNING if kind in (EventKind.FAILOVER, EventKind.WENT_BACK) else Tone.BAD
    return Tone.MUTED if kind in (EventKind.JOINED, EventKind.LEFT) else Tone.GOOD
