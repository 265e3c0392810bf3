"""The speed of a request over time, against plain decoding."""

import math
from collections.abc import Iterator, Sequence
from typing import Final

from cosine_tui import formatting
from cosine_tui.snapshot import RequestView, Snapshot, Speeds
from cosine_tui.styled_text import Line, Span, Tone, fit, width_of

MIN_COLUMNS: Final = 8
"""A choice: narrower plots tell nothing."""
PLAIN_LINE: Final = "╌"
"""The level of plain decoding where no bar covers it."""
_SCALE: Final = 6
"""Cells of the scale on the left."""


def plain_per_s(snapshot: Snapshot, request: RequestView) -> float | None:
    """Tokens a second by plain decoding: one for each pass of the verifier, which announces how long that takes.

    None while no verifier of the request is known.
    """
    nodes = [node for peer_id in request.verifiers if (node := snapshot.node(peer_id)) and node.pass_ms > 0]
    return 1e3 / nodes[0].pass_ms if nodes else None


def speed_plot(speeds: Speeds, plain: float | None, width: int, rows: int) -> list[Line]:
    """Bars of `rows` rows with a scale, a line at the level of plain decoding, the time below; [] without room."""
    columns = width - _SCALE
    if columns < MIN_COLUMNS or not speeds.per_s:
        return []
    values = resampled(speeds.per_s, columns)
    top = max(*values, plain or 0.0, 1e-9)
    plain_row = None if plain is None else min(rows - 1, math.floor(plain / top * rows))
    lines = []
    for row in reversed(range(rows)):
        bars = formatting.bars_in_row(values, top=top, row=row, rows=rows)
        scale = formatting.per_second(top) if row == rows - 1 else ""
        scale = formatting.per_second(plain) if plain is not None and row == plain_row else scale
        cells = bars.replace(" ", PLAIN_LINE) if row == plain_row else bars
        lines.append((Span(fit(scale, _SCALE - 1, "right") + " ", Tone.MUTED), *_toned(cells)))
    seconds = formatting.duration(speeds.interval_s * len(speeds.per_s))
    legend = f"0 s  tokens/s over time{'' if plain is None else f', {PLAIN_LINE} plain'}"
    gap = " " * max(1, columns - len(legend) - len(seconds))
    lines.append((Span(" " * _SCALE + legend + gap + seconds, Tone.MUTED),))
    return lines


def speed_line(snapshot: Snapshot, request: RequestView, width: int) -> Line:
    """The speed over time in a single line, with the gain over plain decoding."""
    heading, gain = Span("speed  ", Tone.MUTED), Span(f"  {gain_over_plain(snapshot, request)}", Tone.MUTED)
    room = max(MIN_COLUMNS, width - width_of((heading, gain)))
    values = resampled(request.speeds.per_s, room)
    top = max(*values, 1e-9) if values else 1.0
    bars = formatting.bars_in_row(values, top=top, row=0, rows=1)
    return (heading, Span(bars.replace(" ", formatting.GAP), Tone.ACCENT), gain)


def gain_over_plain(snapshot: Snapshot, request: RequestView) -> str:
    """`1.9 times plain decoding (16.1)`, or "" where that is not known."""
    plain = plain_per_s(snapshot, request)
    if plain is None or not request.tokens_per_s:
        return ""
    return f"{request.tokens_per_s / plain:.1f} times plain ({formatting.per_second(plain)})"


def resampled(values: Sequence[float], columns: int) -> list[float]:
    """As many means of neighbours, or repeats, as there are columns."""
    if not values:
        return []
    means = []
    for column in range(columns):
        first = column * len(values) // columns
        part = values[first : max(first + 1, (column + 1) * len(values) // columns)]
        means.append(sum(part) / len(part))
    return means


def _toned(cells: str) -> Iterator[Span]:
    """Bars in the colour of the accent, the rest muted."""
    start = 0
    for end in range(1, len(cells) + 1):
        if end == len(cells) or (cells[end] == PLAIN_LINE) != (cells[start] == PLAIN_LINE):
            yield Span(cells[start:end], Tone.MUTED if cells[start] == PLAIN_LINE else Tone.ACCENT)
            start = end
