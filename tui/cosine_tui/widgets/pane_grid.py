"""The panes, and the page that takes their place: where each stands, and what it shows of a snapshot."""

from typing import Final

from textual.app import ComposeResult
from textual.containers import Horizontal, Vertical
from textual.widgets import Static

from cosine_tui.formatting import short_name
from cosine_tui.help import help_lines
from cosine_tui.panes.events import event_lines
from cosine_tui.panes.node_details import node_detail_lines
from cosine_tui.panes.request import request_page, request_title
from cosine_tui.panes.request_details import request_detail_lines
from cosine_tui.panes.requests import request_rows
from cosine_tui.panes.swarm import swarm_rows
from cosine_tui.snapshot import ConnectionState, Snapshot
from cosine_tui.styled_text import Line
from cosine_tui.view import Page, PageKind, PaneName, View
from cosine_tui.widgets.line_pane import LinePane
from cosine_tui.widgets.list_pane import ListPane
from cosine_tui.widgets.pane import Pane

FIRST_KEY: Final = 2
"""The function key of the first pane; F1 is help."""


class PaneGrid(Vertical):
    """All panes side by side, two, or one, by classes that `app.tcss` reads; over them a page, if one is open."""

    def __init__(self, *, id: str) -> None:
        super().__init__(id=id)
        self.swarm = ListPane(id="swarm-lines")
        self.requests = ListPane(id="requests-lines")
        self.request = LinePane(id="request-lines")
        self.events = LinePane(id="events-lines")
        self.page = LinePane(id="page-lines")
        columns = (self.swarm, self.requests, self.request, self.events)
        self._panes = {
            name: Pane(name.heading, lines, id=name) for name, lines in zip(PaneName, columns, strict=True)
        }
        self._page = Pane("", self.page, id="page")
        self._tabs = Static(id="tabs", markup=False)

    def compose(self) -> ComposeResult:
        yield self._tabs
        with Horizontal(id="columns"):
            with Vertical(id="left"):
                yield self._panes[PaneName.SWARM]
                yield self._panes[PaneName.REQUESTS]
                yield self._panes[PaneName.EVENTS]
            with Vertical(id="right"):
                yield self._panes[PaneName.REQUEST]
        yield self._page

    def shown_lines(self, view: View) -> LinePane:
        """The column that keys go to: that of the page, or of the chosen pane."""
        return self._panes[view.pane].lines if view.page is None else self.page

    def lay_out(self, view: View) -> None:
        """Show the page, or the panes of which one is chosen."""
        self._page.set_class(view.page is not None, "-open")
        self.query_one("#columns").set_class(view.page is not None, "-covered")
        for name, pane in self._panes.items():
            pane.set_class(name is view.pane, "-shown")
            # Beside the request stays the pane that was chosen last.
            if view.pane is not PaneName.REQUEST:
                pane.set_class(name is view.pane, "-beside")
        for column in self.query("#left, #right"):
            column.set_class(any(pane.has_class("-shown") for pane in column.query(Pane)), "-shown")
        tabs = [
            f"{'▸' if name is view.pane else ' '}F{number} {name.heading}"
            for number, name in enumerate(PaneName, FIRST_KEY)
        ]
        self._tabs.update("  ".join(tabs))

    def draw(self, snapshot: Snapshot, view: View) -> None:
        """Draw everything that has room on the screen."""
        self._draw_lists(snapshot, view)
        shown = view.shown_request(snapshot)
        self._panes[PaneName.REQUEST].show_title(request_title(shown))
        if width := _width(self.events):
            self.events.show(event_lines(snapshot, width))
        if width := _width(self.request):
            height = self.request.scrollable_content_region.height
            page = request_page(snapshot, shown, width, has_marks=view.has_marks, height=height)
            self.request.show(page.lines, keep_visible=page.end)
        if view.page is not None and (width := _width(self.page)):
            title, lines = _page_of(view.page, snapshot, width, has_marks=view.has_marks)
            self._page.show_title(f"{title}  (PgDn scrolls, Esc closes)")
            self.page.show(lines)

    def _draw_lists(self, snapshot: Snapshot, view: View) -> None:
        is_stale = snapshot.connection.state is ConnectionState.LOST
        notes = ", ".join(filter(None, (view.listing.summary(), "last seen" if is_stale else "")))
        for name in (PaneName.SWARM, PaneName.REQUESTS):
            self._panes[name].show_title(f"{name.heading}  ({notes})" if notes else name.heading)
        if width := _width(self.swarm):
            self.swarm.show_rows(swarm_rows(snapshot, width, view.listing), is_stale=is_stale)
        if width := _width(self.requests):
            self.requests.show_rows(request_rows(snapshot, width, view.listing), is_stale=is_stale)
            shown = view.shown_request(snapshot)
            self.requests.select("" if shown is None else str(shown.number))


def _width(lines: LinePane) -> int:
    return lines.scrollable_content_region.width


def _page_of(page: Page, snapshot: Snapshot, width: int, *, has_marks: bool) -> tuple[str, list[Line]]:
    """The title and the lines of a page."""
    match page.kind:
        case PageKind.HELP:
            return "Help", help_lines(width)
        case PageKind.NODE:
            return f"Node {short_name(page.key)}", node_detail_lines(snapshot, page.key, width)
        case PageKind.REQUEST:
            number = int(page.key)
            lines = request_detail_lines(snapshot, number, width, has_marks=has_marks)
            return request_title(snapshot.request(number)), lines
