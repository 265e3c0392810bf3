"""The screen as SVG without a terminal."""

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cosine_protocol.errors import UsageError
from cosine_tui.looks.themes import DARK
from cosine_tui.state.snapshot import Snapshot
from cosine_tui.svg_export import draw_svg, read_size, snapshot_svg
from tests.tui.snapshots import SNAPSHOT, RecordingFeed


def test_equal_pictures_give_equal_files() -> None:
    first = snapshot_svg(SNAPSHOT, size=(80, 24), theme=DARK, keys=("f4",))
    assert first == snapshot_svg(SNAPSHOT, size=(80, 24), theme=DARK, keys=("f4",))
    assert first.startswith("<svg") and "Request" in first


def test_sizes_are_read() -> None:
    assert read_size("160x48") == (160, 48)


@pytest.mark.parametrize("text", ["", "80", "80x", "0x0", "8000x24", "80x24x2", "eighty"])
def test_what_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="--size must be COLUMNSxROWS"):
        read_size(text)


@given(st.text(max_size=12))
def test_any_text_is_a_size_or_refused(text: str) -> None:
    try:
        columns, rows = read_size(text)
    except UsageError:
        return
    assert columns >= 40 and rows >= 10


def test_what_ends_a_feed_before_its_first_picture_is_raised() -> None:
    feed = RecordingFeed(Snapshot())
    feed.fail(UsageError("That is no address."))
    with pytest.raises(UsageError, match="That is no address"):
        asyncio.run(draw_svg(feed, size=(80, 24), theme=DARK))
