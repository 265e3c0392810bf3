"""A scrolling column of lines, drawn again only when they have changed."""

from collections.abc import Sequence
from typing import ClassVar

from rich.segment import Segment
from rich.style import Style
from textual.binding import Binding, BindingType
from textual.geometry import Size
from textual.scroll_view import ScrollView
from textual.strip import Strip

from cosine_tui.styled_text import Line, Tone, clean, text_of


class LinePane(ScrollView, can_focus=True):
    """Shows lines; arrow keys scroll them. `is_stale` greys everything: it is the last that was seen."""

    COMPONENT_CLASSES: ClassVar[set[str]] = {*(f"tone--{tone.value}" for tone in Tone), "line--marked"}
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up", "scroll_up", "Up", show=False),
        Binding("down", "scroll_down", "Down", show=False),
    ]

    def __init__(self, *, id: str) -> None:
        super().__init__(id=id)
        self.is_stale = False
        self._lines: tuple[Line, ...] = ()
        self._styles: dict[Tone, Style] = {}
        self._marked: int | None = None

    @property
    def text(self) -> str:
        """The text that is shown, without its tones."""
        return text_of(self._lines)

    def show(self, lines: Sequence[Line], *, is_stale: bool = False, keep_visible: int | None = None) -> None:
        """Show other lines, scrolled so that line `keep_visible` is on the screen."""
        shown = tuple(lines)
        if (shown, is_stale) != (self._lines, self.is_stale):
            self._lines, self.is_stale = shown, is_stale
            self.virtual_size = Size(self.scrollable_content_region.width, len(shown))
            self.refresh()
        if keep_visible is not None and not self.has_focus:
            self.scroll_to(y=max(0, keep_visible + 1 - self.scrollable_content_region.height), animate=False)

    def mark_line(self, number: int | None) -> None:
        """Mark one line, or none."""
        if number != self._marked:
            self._marked = number
            self.refresh()

    def scroll_to_line(self, number: int) -> None:
        """Scroll no further than needed to have a line on the screen."""
        height = self.scrollable_content_region.height
        top = min(number, max(round(self.scroll_offset.y), number + 1 - height))
        self.scroll_to(y=top, animate=False)

    def notify_style_update(self) -> None:
        super().notify_style_update()
        self._styles = {}

    def render_line(self, y: int) -> Strip:
        width = self.scrollable_content_region.width
        number = y + round(self.scroll_offset.y)
        base = self.rich_style
        if number >= len(self._lines):
            return Strip.blank(width, base)
        segments = [Segment(clean(span.text), self._style(span.tone)) for span in self._lines[number]]
        strip = Strip(segments).adjust_cell_length(width, base).apply_style(base)
        if number != self._marked:
            return strip
        marked = Style(bgcolor=self.get_component_rich_style("line--marked").bgcolor)
        return Strip([Segment(text, (style or base) + marked) for text, style, _ in strip])

    def _style(self, tone: Tone) -> Style:
        shown = Tone.MUTED if self.is_stale else tone
        if shown not in self._styles:
            self._styles[shown] = self.get_component_rich_style(f"tone--{shown.value}")
        return self._styles[shown]
