"""The approved screens, at both sizes and in both themes; `--snapshot-update` approves new ones."""

from collections.abc import Callable

import pytest

from cosine_tui.app import MonitorApp
from cosine_tui.looks.themes import DARK, LIGHT
from cosine_tui.state.feed import Feed
from tests.thoroughness import quick_first
from tests.tui.snapshots import SNAPSHOT

NARROW, TWO, WIDE = (80, 24), (100, 30), (160, 48)

Compare = Callable[..., bool]


@pytest.mark.parametrize("theme", quick_first([DARK, LIGHT]))
def test_wide(snap_compare: Compare, theme: str) -> None:
    assert snap_compare(MonitorApp(Feed(SNAPSHOT), theme=theme), terminal_size=WIDE)


@pytest.mark.parametrize("key", quick_first(["f2", "f4"]))
def test_narrow(snap_compare: Compare, key: str) -> None:
    assert snap_compare(MonitorApp(Feed(SNAPSHOT)), terminal_size=NARROW, press=[key])


def test_node_page(snap_compare: Compare) -> None:
    keys = ["f2", "down", "down", "down", "enter"]
    assert snap_compare(MonitorApp(Feed(SNAPSHOT)), terminal_size=TWO, press=keys)


def test_request_page(snap_compare: Compare) -> None:
    assert snap_compare(MonitorApp(Feed(SNAPSHOT)), terminal_size=WIDE, press=["ctrl+o"])


def test_help(snap_compare: Compare) -> None:
    assert snap_compare(MonitorApp(Feed(SNAPSHOT)), terminal_size=NARROW, press=["f1"])


@pytest.mark.thorough
def test_error_on_the_prompt_line(snap_compare: Compare) -> None:
    keys = [*"/strategy magic-that-nobody-has-thought-of", "enter"]
    assert snap_compare(MonitorApp(Feed(SNAPSHOT)), terminal_size=NARROW, press=keys)
