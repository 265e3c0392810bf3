"""What happened, the latest first."""

from cosine_tui import figures
from cosine_tui.picture import Event, EventKind, Picture
from cosine_tui.spans import Line, Span, Tone, fit, wrap

_WORD = 13


def event_lines(picture: Picture, width: int) -> list[Line]:
    """One event a paragraph: when, a sign, a word, and what."""
    if not picture.events:
        return [(Span("Nothing has happened yet.", Tone.MUTED),)]
    return [line for event in reversed(picture.events) for line in _event(event, picture, width)]


def _event(event: Event, picture: Picture, width: int) -> list[Line]:
    when = figures.clock(event.at_s, picture.began_unix_s) + "  "
    tone = _tone(event.kind)
    head = (Span(when, Tone.MUTED), Span(f"{event.kind.sign} {fit(event.kind.word, _WORD - 2)} ", tone))
    indent = len(when) + _WORD + 1
    text = wrap([Span(event.text)], max(10, width - indent))
    return [(*head, *text[0]), *((Span(" " * indent), *line) for line in text[1:])]


def _tone(kind: EventKind) -> Tone:
    if kind.is_alert:
        return Tone.WARNING if kind is EventKind.FAILOVER else Tone.BAD
    return Tone.MUTED if kind in (EventKind.JOINED, EventKind.LEFT) else Tone.GOOD
