"""The screen without a terminal: one snapshot drawn at a given size as SVG."""

import asyncio
import re
from collections.abc import Sequence
from typing import Final

from cosine_protocol.errors import UsageError
from cosine_tui.app import MonitorApp
from cosine_tui.state.feed import Feed
from cosine_tui.state.snapshot import Snapshot

# Bounds of --size: the minimum that shows anything, and more than any screen.
MIN_COLUMNS: Final = 40
MAX_COLUMNS: Final = 500
MIN_ROWS: Final = 10
MAX_ROWS: Final = 200
_SIZE: Final = re.compile(r"(\d{1,4})x(\d{1,4})")  # COLUMNSxROWS
# A viewer would download these fonts from a third party; any monospaced font suffices.
_FETCHED_FONTS: Final = re.compile(r"\s*@font-face \{.*?\}", re.DOTALL)


def read_size(text: str) -> tuple[int, int]:
    """Return the columns and rows of `160x48`. Raises `UsageError`."""
    match = _SIZE.fullmatch(text)
    columns, rows = (int(match[1]), int(match[2])) if match else (0, 0)
    if not (MIN_COLUMNS <= columns <= MAX_COLUMNS and MIN_ROWS <= rows <= MAX_ROWS):
        raise UsageError(
            f"--size must be COLUMNSxROWS from {MIN_COLUMNS}x{MIN_ROWS} to {MAX_COLUMNS}x{MAX_ROWS}, for example "
            f"160x48, not {text!r}."
        )
    return columns, rows


async def draw_svg(
    feed: Feed, *, size: tuple[int, int], theme: str, keys: Sequence[str] = (), wait_s: float = 0.0
) -> str:
    """Return the screen as SVG, `wait_s` after the first snapshot and after `keys`. Raises the feed's error."""
    app = MonitorApp(feed, theme=theme)
    async with app.run_test(size=size) as pilot:
        while app.snapshot == Snapshot() and app.failure is None:
            # Shorter than a frame.
            await pilot.pause(0.05)
        await pilot.pause(wait_s)
        for key in keys:
            await pilot.press(key)
        app.draw()
        await pilot.pause()
        svg = _FETCHED_FONTS.sub("", app.export_screenshot(title="cosine-tui"))
    if app.failure is not None:
        raise app.failure
    return svg


def snapshot_svg(snapshot: Snapshot, *, size: tuple[int, int], theme: str, keys: Sequence[str] = ()) -> str:
    """Return a fixed snapshot as SVG, equal for equal arguments."""
    return asyncio.run(draw_svg(Feed(snapshot), size=size, theme=theme, keys=keys))
