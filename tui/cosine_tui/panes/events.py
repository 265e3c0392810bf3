"""What happened, the latest first."""

from cosine_tui import formatting
from cosine_tui.snapshot import Event, EventKind, Snapshot
from cosine_tui.styled_text import Line, Span, Tone, fit, wrap

_WORD = 13


def event_lines(snapshot: Snapshot, width: int) -> list[Line]:
    """One event a paragraph: when, a sign, a word, and what."""
    if not snapshot.events:
        return [(Span("Nothing has happened yet.", Tone.MUTED),)]
    return [line for event in reversed(snapshot.events) for line in _event(event, snapshot, width)]


def _event(event: Event, snapshot: Snapshot, width: int) -> list[Line]:
    when = formatting.clock(event.at_s, snapshot.began_unix_s) + "  "
    tone = _tone(event.kind)
    head = (Span(when, Tone.MUTED), Span(f"{event.kind.sign} {fit(event.kind.word, _WORD - 2)} ", tone))
    indent = len(when) + _WORD + 1
    text = wrap([Span(event.text)], max(10, width - indent))
    return [(*head, *text[0]), *((Span(" " * indent), *line) for line in text[1:])]


def _tone(kind: EventKind) -> Tone:
    if kind.is_alert:
        return Tone.WARNING if kind is EventKind.FAILOVER else Tone.BAD
    return Tone.MUTED if kind in (EventKind.JOINED, EventKind.LEFT) else Tone.GOOD
