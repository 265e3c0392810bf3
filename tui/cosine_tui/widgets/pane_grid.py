"""The panes and the page in their place: their layout, and their content from a snapshot."""

from textual.app import ComposeResult
from textual.containers import Horizontal, Vertical
from textual.widgets import Static

from cosine_tui.looks.formatting import short_name
from cosine_tui.panes.events import event_list
from cosine_tui.panes.help import help_page
from cosine_tui.panes.node import node_page
from cosine_tui.panes.request import request_page, request_pane, request_title
from cosine_tui.panes.requests import request_rows
from cosine_tui.panes.swarm import swarm_rows
from cosine_tui.state.prompt_line import COMMANDS
from cosine_tui.state.snapshot import ConnectionState, Snapshot
from cosine_tui.state.view import Page, PageKind, PaneName, View
from cosine_tui.widgets.lines import LinePane, ListPane


class PaneGrid(Vertical):
    """All panes side by side, two, or one, by the classes of `app.tcss`; an open page covers them."""

    def __init__(self, *, id: str) -> None:
        super().__init__(id=id)
        self.swarm = ListPane(id=PaneName.SWARM, title="Swarm")
        self.requests = ListPane(id=PaneName.REQUESTS, title="Requests")
        self.request = LinePane(id=PaneName.REQUEST, title="Request")
        self.events = LinePane(id=PaneName.EVENTS, title="Events")
        self.page = LinePane(id="page", title="Page")
        self._tabs = Static(id="tabs", markup=False)
        self._drawn_events: object = None

    def compose(self) -> ComposeResult:
        yield self._tabs
        with Horizontal(id="columns"):
            with Vertical(id="left"):
                yield self.swarm
                yield self.requests
                yield self.events
            with Vertical(id="right"):
                yield self.request
        yield self.page

    def shown_pane(self, view: View) -> LinePane:
        return self.page if view.page is not None else self.query_one(f"#{view.pane}", LinePane)

    def lay_out(self, view: View) -> None:
        self.set_class(view.page is not None, "-paged")
        for pane in (self.swarm, self.requests, self.request, self.events):
            pane.set_class(pane.id == view.pane, "-shown")
            # The pane chosen last stays next to the request.
            if view.pane is not PaneName.REQUEST:
                pane.set_class(pane.id == view.pane, "-beside")
        for column in self.query("#left, #right"):
            column.set_class(any(pane.has_class("-shown") for pane in column.query(LinePane)), "-shown")
        keys = {command.name: command.key_label for command in COMMANDS}
        tabs = [f"{'▸' if name is view.pane else ' '}{keys[name]} {name.capitalize()}" for name in PaneName]
        self._tabs.update("  ".join(tabs))

    def draw(self, snapshot: Snapshot, view: View) -> None:
        shown = view.shown_request(snapshot)
        is_stale = snapshot.connection.state is ConnectionState.LOST
        notes = ", ".join(filter(None, (view.listing.summary(), "last seen" if is_stale else "")))
        self.swarm.show_title(f"Swarm  ({notes})" if notes else "Swarm")
        self.requests.show_title(f"Requests  ({notes})" if notes else "Requests")
        self.request.show_title(request_title(shown))
        if width := self.swarm.width:
            self.swarm.show_rows(swarm_rows(snapshot, width, view.listing), is_stale=is_stale)
        if width := self.requests.width:
            self.requests.show_rows(request_rows(snapshot, width, view.listing), is_stale=is_stale)
            self.requests.select("" if shown is None else str(shown.number))
        if width := self.request.width:
            height = self.request.scrollable_content_region.height
            self.request.show(*request_pane(snapshot, shown, width, has_marks=view.has_marks, height=height))
        # Drawn on changes only: there can be hundreds of events, and new ones are rare.
        events = (snapshot.events, self.events.width, self.app.theme)
        if self.events.width and events != self._drawn_events:
            self._drawn_events = events
            self.events.show(event_list(snapshot))
        if self.page.width:
            self._draw_page(snapshot, view)

    def _draw_page(self, snapshot: Snapshot, view: View) -> None:
        match view.page:
            case Page(PageKind.HELP):
                title, content = "Help", help_page()
            case Page(PageKind.NODE, peer_id):
                title, content = f"Node {short_name(peer_id)}", node_page(snapshot, peer_id)
            case Page(PageKind.REQUEST, number):
                title = request_title(snapshot.request(int(number)))
                content = request_page(snapshot, int(number), self.page.width, has_marks=view.has_marks)
            case None:
                return
        self.page.show_title(f"{title}  (PgDn scrolls, Esc closes)")
        self.page.show(content)
