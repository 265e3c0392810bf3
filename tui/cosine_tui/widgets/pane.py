"""A pane: a title and a column of lines below it."""

from collections.abc import Sequence

from textual.app import ComposeResult
from textual.containers import Vertical
from textual.widgets import Static

from cosine_tui.styled_text import Line, clean
from cosine_tui.widgets.line_pane import LinePane


class Pane(Vertical):
    """A sign in its title line shows if the keys go to it."""

    def __init__(self, title: str, *, id: str) -> None:
        super().__init__(id=id, classes="pane")
        self._title = title
        self.stated_title = title
        self._heading = Static(classes="title", markup=False)
        self.lines = LinePane(id=f"{id}-lines")

    def compose(self) -> ComposeResult:
        yield self._heading
        yield self.lines

    def on_mount(self) -> None:
        self._draw_title()

    def on_descendant_focus(self) -> None:
        self._draw_title()

    def on_descendant_blur(self) -> None:
        self._draw_title()

    def show(
        self,
        lines: Sequence[Line],
        *,
        title: str | None = None,
        is_stale: bool = False,
        keep_visible: int | None = None,
    ) -> None:
        self.lines.show(lines, is_stale=is_stale, keep_visible=keep_visible)
        stated = f"{title or self._title}{'  (last seen)' if is_stale else ''}"
        if stated != self.stated_title:
            self.stated_title = stated
            self._draw_title()

    def _draw_title(self) -> None:
        sign = "▸ " if self.lines.has_focus else "  "
        self._heading.update(sign + clean(self.stated_title).upper())
