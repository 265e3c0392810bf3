"""A column of lines of which some can be selected."""

from collections.abc import Sequence
from typing import ClassVar

from textual import events
from textual.binding import Binding, BindingType
from textual.message import Message

from cosine_tui.styled_text import ListRow
from cosine_tui.widgets.line_pane import LinePane


class ListPane(LinePane):
    """Arrow keys or the mouse select a row. Posts `Selected`, and `Chosen` for Enter or a second click."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up", "select(-1)", "Before", show=False),
        Binding("down", "select(1)", "After", show=False),
        Binding("home", "select(-1000000)", "First", show=False),
        Binding("end", "select(1000000)", "Last", show=False),
        Binding("enter", "choose", "Details", key_display="Enter"),
    ]

    class Selected(Message):
        """Another row is selected."""

        def __init__(self, pane: "ListPane", key: str) -> None:
            super().__init__()
            self.pane = pane
            self.key = key

    class Chosen(Selected):
        """Everything about a row is wanted."""

    def __init__(self, *, id: str) -> None:
        super().__init__(id=id)
        self.selected = ""
        self._keys: tuple[str, ...] = ()

    def show_rows(self, rows: Sequence[ListRow], *, is_stale: bool = False) -> None:
        """Show other rows; the selection stays where its row is still there."""
        self._keys = tuple(row.key for row in rows)
        self.show([row.line for row in rows], is_stale=is_stale)
        self.select(self.selected)

    def select(self, key: str) -> None:
        """Mark the row of a key, if there is one."""
        self.selected = key
        self.mark_line(self._keys.index(key) if key and key in self._keys else None)

    def action_select(self, step: int) -> None:
        keys = [key for key in self._keys if key]
        if not keys:
            return
        here = keys.index(self.selected) + step if self.selected in keys else 0
        self._select_and_tell(keys[min(len(keys) - 1, max(0, here))])

    def action_choose(self) -> None:
        if self.selected in self._keys and self.selected:
            self.post_message(self.Chosen(self, self.selected))

    def on_click(self, event: events.Click) -> None:
        line = round(event.y + self.scroll_offset.y)
        key = self._keys[line] if line < len(self._keys) else ""
        if not key:
            return
        if key == self.selected:
            self.action_choose()
        else:
            self._select_and_tell(key)

    def _select_and_tell(self, key: str) -> None:
        self.select(key)
        self.scroll_to_line(self._keys.index(key))
        self.post_message(self.Selected(self, key))
