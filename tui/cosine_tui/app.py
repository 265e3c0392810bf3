"""The screen: panes side by side where there is room, one at a time where there is not."""

import os
from collections.abc import Callable, Sequence
from typing import ClassVar, Final

from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical
from textual.widgets import Footer, Static

from cosine_tui.feed import FRAMES_PER_S, Feed
from cosine_tui.help import HelpScreen
from cosine_tui.panes.events import event_lines
from cosine_tui.panes.flow import flow_lines
from cosine_tui.panes.headline import headline
from cosine_tui.panes.request import request_page, request_title
from cosine_tui.panes.swarm import swarm_lines
from cosine_tui.snapshot import ConnectionState, RequestView, Snapshot
from cosine_tui.styled_text import Line
from cosine_tui.themes import DARK, LIGHT, THEMES
from cosine_tui.widgets.line_pane import LinePane
from cosine_tui.widgets.pane import Pane
from cosine_tui.widgets.prompt_box import PromptBox

WIDE_COLUMNS: Final = 130
"""From this width on all panes fit side by side without cutting their tables."""
PANES: Final = {"swarm": "Swarm", "flow": "Who drafts for whom", "request": "Request", "events": "Events"}
"""Titles by the ids of the panes in `app.tcss`."""


class MonitorApp(App[None]):
    """Draws the snapshots of a feed and hands it the user's commands. `return_code` is 1 if the feed failed."""

    CSS_PATH = "app.tcss"
    TITLE = "CoSine"
    ENABLE_COMMAND_PALETTE = False
    HORIZONTAL_BREAKPOINTS = [(0, "-narrow"), (WIDE_COLUMNS, "-wide")]  # noqa: RUF012 - declared so by textual
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("p", "prompt", "Prompt"),
        Binding("slash", "option", "Option", show=False),
        Binding("x", "cancel", "Cancel"),
        Binding("left_square_bracket", "request(-1)", "Before", key_display="["),
        Binding("right_square_bracket", "request(1)", "After", key_display="]"),
        Binding("right_curly_bracket", "latest", "Latest", show=False),
        Binding("d", "details", "Details"),
        Binding("m", "marks", "Marks"),
        Binding("t", "theme", "Theme"),
        *[Binding(str(number), f"pane('{name}')", show=False) for number, name in enumerate(PANES, 1)],
        Binding("escape", "leave", "Leave", show=False),
        Binding("question_mark", "help", "Help", key_display="?"),
        Binding("q", "quit", "Quit"),
        Binding("ctrl+c", "quit", "Quit", show=False, priority=True),
    ]

    def __init__(self, feed: Feed, *, theme: str = DARK, frames_per_s: float = FRAMES_PER_S) -> None:
        super().__init__()
        for known in THEMES:
            self.register_theme(known)
        self.theme = theme
        self.snapshot = Snapshot()
        self.failure: BaseException | None = None
        self._feed = feed
        self._frames_per_s = frames_per_s
        self._has_details = False
        self._has_marks = "NO_COLOR" in os.environ
        self._shown_pane = "swarm"
        self._pinned: int | None = None
        self._follows_own = True
        self._headline = LinePane(id="headline")
        self._headline.can_focus = False
        self._tabs = Static(id="tabs", markup=False)
        self._panes = {name: Pane(title, id=name) for name, title in PANES.items()}
        self._prompt = PromptBox(id="prompt")

    def compose(self) -> ComposeResult:
        yield self._headline
        yield self._tabs
        with Horizontal(id="columns"):
            with Vertical(id="left"):
                yield self._panes["swarm"]
                yield self._panes["flow"]
                yield self._panes["events"]
            with Vertical(id="right"):
                yield self._panes["request"]
        yield self._prompt
        yield Footer(show_command_palette=False, compact=True)

    def on_mount(self) -> None:
        self._feed.start()
        self.set_interval(1 / self._frames_per_s, self.update_snapshot)
        self.action_pane(self._shown_pane)
        self.call_after_refresh(self.update_snapshot)

    def on_unmount(self) -> None:
        self._feed.close()

    def on_resize(self) -> None:
        self.call_after_refresh(self.draw)

    def on_prompt_box_sent(self, event: PromptBox.Sent) -> None:
        self._pinned, self._follows_own = None, True
        self._feed.ask(event.prompt, event.options)
        self.action_pane("request")

    def action_prompt(self) -> None:
        self._prompt.open()

    def action_option(self) -> None:
        self._prompt.open("/")

    def action_leave(self) -> None:
        self._panes[self._shown_pane].lines.focus()

    def action_cancel(self) -> None:
        request = self.shown_request
        if request is None or not request.is_own or request.state.is_over:
            self.notify("Only a request of your own that still goes on can be cancelled.", timeout=3)
            return
        self._feed.cancel(request.number)

    def action_request(self, step: int) -> None:
        """Show the request before or after the one that is shown, and stay with it."""
        numbers = [request.number for request in self.snapshot.requests]
        shown = self.shown_request
        if shown is None:
            return
        index = min(len(numbers) - 1, max(0, numbers.index(shown.number) + step))
        self._pinned = numbers[index]
        self.draw()

    def action_latest(self) -> None:
        """Show whatever is written now, whoever asked for it."""
        self._pinned, self._follows_own = None, False
        self.draw()

    def action_details(self) -> None:
        self._has_details = not self._has_details
        self.draw()

    def action_marks(self) -> None:
        self._has_marks = not self._has_marks
        self.draw()

    def action_theme(self) -> None:
        self.theme = LIGHT if self.theme == DARK else DARK

    def action_pane(self, name: str) -> None:
        self._shown_pane = name
        for known, pane in self._panes.items():
            pane.set_class(known == name, "-shown")
        for column in self.query("#left, #right"):
            column.set_class(any(pane.has_class("-shown") for pane in column.query(Pane)), "-shown")
        self._panes[name].lines.focus()
        self._draw_tabs()
        self.call_after_refresh(self.draw)

    def action_help(self) -> None:
        self.push_screen(HelpScreen())

    @property
    def shown_request(self) -> RequestView | None:
        """The request the user chose; else the latest of their own; else the oldest that is written now."""
        requests = self.snapshot.requests
        pinned = next((request for request in requests if request.number == self._pinned), None)
        if pinned is not None:
            return pinned
        own = [request for request in requests if request.is_own]
        if own and self._follows_own:
            return own[-1]
        writing = [request for request in requests if request.text and not request.state.is_over]
        return writing[0] if writing else (requests[-1] if requests else None)

    def draw(self) -> None:
        """Draw every pane from the snapshot."""
        snapshot = self.snapshot
        is_stale = snapshot.connection.state is ConnectionState.LOST
        self._headline.show(headline(snapshot, self._headline.scrollable_content_region.width))
        self._show(
            "swarm", lambda width: swarm_lines(snapshot, width, has_details=self._has_details), is_stale=is_stale
        )
        self._show("flow", lambda width: flow_lines(snapshot, width), is_stale=is_stale)
        self._show("events", lambda width: event_lines(snapshot, width), is_stale=False)
        self._draw_request()

    def _draw_request(self) -> None:
        pane = self._panes["request"]
        width, height = pane.lines.scrollable_content_region.size
        if width > 0:
            request = self.shown_request
            page = request_page(self.snapshot, request, width, has_marks=self._has_marks, height=height)
            pane.show(page.lines, title=request_title(request), keep_visible=page.end)

    def _show(self, name: str, lines: Callable[[int], Sequence[Line]], *, is_stale: bool) -> None:
        pane = self._panes[name]
        width = pane.lines.scrollable_content_region.width
        if width > 0:
            pane.show(lines(width), title=PANES[name], is_stale=is_stale)

    def _draw_tabs(self) -> None:
        marks = {name: "▸" if name == self._shown_pane else " " for name in PANES}
        titles = ("Swarm", "Who drafts", "Request", "Events")
        tabs = [
            f"{marks[name]}{number} {title}"
            for number, (name, title) in enumerate(zip(PANES, titles, strict=True), 1)
        ]
        self._tabs.update("   ".join(tabs))

    def update_snapshot(self) -> None:
        """Draw the latest snapshot, if there is a new one."""
        error = self._feed.error()
        if error is not None:
            self.failure = error
            self.exit(return_code=1)
            return
        snapshot = self._feed.take()
        if snapshot is not None:
            self.snapshot = snapshot
            self.draw()
