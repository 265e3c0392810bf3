"""A pane: a title and a column of lines below it."""

from textual.app import ComposeResult
from textual.containers import Vertical
from textual.widgets import Static

from cosine_tui.styled_text import clean
from cosine_tui.widgets.line_pane import LinePane


class Pane(Vertical):
    """A sign in its title line shows if the keys go to its column, which has the id of the pane and `-lines`."""

    def __init__(self, title: str, lines: LinePane, *, id: str) -> None:
        super().__init__(id=id, classes="pane")
        self.stated_title = title
        self.lines = lines
        self._heading = Static(classes="title", markup=False)

    def compose(self) -> ComposeResult:
        yield self._heading
        yield self.lines

    def on_mount(self) -> None:
        self._draw_title()

    def on_descendant_focus(self) -> None:
        self._draw_title()

    def on_descendant_blur(self) -> None:
        self._draw_title()

    def show_title(self, title: str) -> None:
        if title != self.stated_title:
            self.stated_title = title
            self._draw_title()

    def _draw_title(self) -> None:
        sign = "▸ " if self.lines.has_focus else "  "
        self._heading.update(sign + clean(self.stated_title))
