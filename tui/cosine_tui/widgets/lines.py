"""The panes: a title over scrolling lines, and lists, which are panes of selectable lines."""

from collections.abc import Iterable, Sequence
from typing import ClassVar

from rich.console import RenderableType
from rich.segment import Segment
from textual import events
from textual.binding import Binding, BindingType
from textual.content import Content
from textual.geometry import Size
from textual.message import Message
from textual.scroll_view import ScrollView
from textual.strip import Strip

from cosine_tui.looks.styled_text import ListRow, Tone, clean
from cosine_tui.looks.themes import SELECTED


class LinePane(ScrollView, can_focus=True):
    """A pane of Rich content. A sign in its title shows the focus, with which arrow keys scroll."""

    def __init__(self, *, id: str, title: str = "") -> None:
        super().__init__(id=id)
        self.title = title
        self._lines: list[list[Segment]] = []

    def on_mount(self) -> None:
        self.show_title(self.title)

    on_focus = on_blur = on_mount

    def show_title(self, title: str) -> None:
        self.title = title
        self.border_title = Content(f"{'▸' if self.has_focus else ' '}{clean(title)} ") if title else None

    @property
    def width(self) -> int:
        """The cells of a line, 0 without room for the pane."""
        return self.scrollable_content_region.width

    @property
    def text(self) -> str:
        return "\n".join("".join(segment.text for segment in line).rstrip() for line in self._lines)

    def show(self, content: RenderableType, below: RenderableType | None = None) -> None:
        """Show `content`; with a part `below`, scroll to the end of `content`."""
        options = self.app.console.options.update(width=self.width, height=None)
        parts = [content] if below is None else [content, below]
        drawn = [self.app.console.render_lines(part, options, pad=False) for part in parts]
        lines = [line for part in drawn for line in part]
        if lines != self._lines:
            self._lines = lines
            self.set_height(len(lines))
        if below is not None and not self.has_focus:
            height = self.scrollable_content_region.height
            self.scroll_to(y=max(0, len(drawn[0]) - height), animate=False)

    def set_height(self, lines: int) -> None:
        self.virtual_size = Size(self.width, lines)
        self.refresh()

    def line(self, number: int) -> Iterable[Segment]:
        return self._lines[number]

    def render_line(self, y: int) -> Strip:
        number = y + round(self.scroll_offset.y)
        segments = self.line(number) if number < self.virtual_size.height else ()
        return Strip(segments).adjust_cell_length(self.width, self.rich_style).apply_style(self.rich_style)


class ListPane(LinePane):
    """A list: arrow keys or a click post `Selected`, Enter or a second click `Chosen`. `is_stale` greys all."""

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
        """A row is opened."""

    def __init__(self, *, id: str, title: str) -> None:
        super().__init__(id=id, title=title)
        self.selected = ""
        self.is_stale = False
        self._rows: Sequence[ListRow] = ()

    @property
    def text(self) -> str:
        return "\n".join(row.line.plain for row in self._rows)

    def show_rows(self, rows: Sequence[ListRow], *, is_stale: bool = False) -> None:
        """Replace the rows; the selection stays if its row does."""
        if (rows, is_stale) != (self._rows, self.is_stale):
            self._rows, self.is_stale = rows, is_stale
            self.set_height(len(rows))

    def select(self, key: str) -> None:
        if key != self.selected:
            self.selected = key
            self.refresh()

    def line(self, number: int) -> Iterable[Segment]:
        # Rendered on demand, since a list can have many more rows than the pane.
        row, console = self._rows[number], self.app.console
        segments = Segment.apply_style(row.line.render(console), console.get_style(row.line.style))
        if self.is_stale:
            segments = [Segment(segment.text, console.get_style(Tone.MUTED)) for segment in segments]
        if row.key and row.key == self.selected:
            room = Segment(" " * max(0, self.width - row.line.cell_len))
            segments = Segment.apply_style([*segments, room], post_style=console.get_style(SELECTED))
        return segments

    def action_select(self, step: int) -> None:
        keys = self._keys()
        if keys:
            at = keys.index(self.selected) + step if self.selected in keys else 0
            self._select_and_tell(keys[min(len(keys) - 1, max(0, at))])

    def action_choose(self) -> None:
        if self.selected in self._keys():
            self.post_message(self.Chosen(self, self.selected))

    def on_click(self, event: events.Click) -> None:
        number = event.get_content_offset_capture(self).y + round(self.scroll_offset.y)
        key = self._rows[number].key if 0 <= number < len(self._rows) else ""
        if key and key == self.selected:
            self.action_choose()
        elif key:
            self._select_and_tell(key)

    def _keys(self) -> list[str]:
        return [row.key for row in self._rows if row.key]

    def _select_and_tell(self, key: str) -> None:
        self.select(key)
        number = next(number for number, row in enumerate(self._rows) if row.key == key)
        height = self.scrollable_content_region.height
        # The minimum that makes the row visible.
        self.scroll_to(y=min(number, max(round(self.scroll_offset.y), number + 1 - height)), animate=False)
        self.post_message(self.Selected(self, key))
