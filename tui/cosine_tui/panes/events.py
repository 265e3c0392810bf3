"""The pane of events, latest first."""

from rich.console import RenderableType

from cosine_tui.looks import formatting
from cosine_tui.looks.styled_text import Tone, beside, toned
from cosine_tui.state.snapshot import EventKind, Snapshot


def event_list(snapshot: Snapshot) -> RenderableType:
    """Return one paragraph per event: its time, sign, word and text."""
    if not snapshot.events:
        return toned("Nothing has happened yet.", Tone.MUTED)
    rows = []
    for event in reversed(snapshot.events):
        time = formatting.clock(event.at_s, snapshot.began_unix_s)
        word = f"{event.kind.sign} {event.kind.word}"
        rows.append((toned(time, Tone.MUTED), toned(word, _tone(event.kind)), toned(event.text)))
    return beside(rows, columns=3)


def _tone(kind: EventKind) -> Tone:
    if kind.is_alert:
        return Tone.WARNING if kind is EventKind.FAILOVER else Tone.BAD
    return Tone.MUTED if kind in (EventKind.JOINED, EventKind.LEFT) else Tone.GOOD
