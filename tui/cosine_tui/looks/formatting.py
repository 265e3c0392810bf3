"""Numbers as text for people: with units, and only significant digits."""

import math
from collections.abc import Sequence
from datetime import datetime
from typing import Final

# Characters for an unknown number, for nothing in a bar, and for eighths of a cell from the left and from below.
NONE: Final = "–"
GAP: Final = "·"
_EIGHTHS: Final = " ▏▎▍▌▋▊▉█"
_HEIGHTS: Final = "▁▂▃▄▅▆▇█"


def milliseconds(value_ms: float | None) -> str:
    """Format as `0.8 ms`, `41 ms` or `1.2 s`; a dash for None."""
    if value_ms is None:
        return NONE
    if value_ms >= 1000:
        return f"{value_ms / 1000:.1f} s"
    return f"{value_ms:.1f} ms" if value_ms < 10 else f"{value_ms:.0f} ms"


def per_second(rate: float) -> str:
    """Format a rate without its unit, with one decimal below 100."""
    return f"{rate:.1f}" if rate < 99.95 else f"{rate:,.0f}"


def percent(share: float | None) -> str:
    return NONE if share is None else f"{100 * share:.0f} %"


def counted(number: int, thing: str) -> str:
    """Format as `1 node` or `2,000 nodes`."""
    return f"{number:,} {thing}{'' if number == 1 else 's'}"


def duration(seconds: float) -> str:
    """Format as `4 s`, `2 min 05 s` or `3 h 07 min`."""
    whole = max(0, math.floor(seconds))
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"


def clock(at_s: float, began_unix_s: float | None) -> str:
    """Format a moment as local time, or as minutes and seconds since an unknown beginning."""
    if began_unix_s is not None:
        return datetime.fromtimestamp(began_unix_s + at_s).strftime("%H:%M:%S")
    whole = max(0, math.floor(at_s))
    return f"{whole // 60:02d}:{whole % 60:02d}"


def bar(share: float, width: int) -> str:
    """Draw a share from 0 to 1 as a bar of `width` cells; any share above 0 is visible."""
    eighths = round(8 * width * min(1.0, max(0.0, share)))
    if share > 0 and width > 0:
        eighths = max(1, eighths)
    full, rest = divmod(eighths, 8)
    text = "█" * full + (_EIGHTHS[rest] if rest else "")
    return text + GAP * (width - len(text))


def sparkline(values: Sequence[int], width: int) -> str:
    """Draw the last `width` values as heights, the maximum at least 8; 0 is a dot."""
    shown = values[-width:] if width > 0 else ()
    top = max(8, *shown) if shown else 8
    return "".join(GAP if value <= 0 else _HEIGHTS[math.ceil(8 * value / top) - 1] for value in shown)


def bars_in_row(values: Sequence[float], *, top: float, row: int, rows: int) -> str:
    """Draw one row of a bar chart of `rows` rows, the lowest row 0; `top` is the full height."""
    cells = []
    for value in values:
        eighths = round(8 * rows * max(0.0, value) / top) - 8 * row
        cells.append(" " if eighths <= 0 else _HEIGHTS[min(8, eighths) - 1])
    return "".join(cells)


def file_size(count: int) -> str:
    """Format as `812 B`, `64.2 kB` or `3.1 MB`."""
    if count < 1000:
        return f"{count} B"
    return f"{count / 1e3:.1f} kB" if count < 1e6 else f"{count / 1e6:.1f} MB"


def short_name(peer_id: str) -> str:
    """Return the end of a peer id: all Ed25519 ids have the same beginning."""
    return peer_id[-6:]
