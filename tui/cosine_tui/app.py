"""The screen: as many panes side by side as fit, and the prompt line."""

import os
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import ClassVar, Final

from textual import events
from textual.app import App, ComposeResult, SystemCommand
from textual.binding import Binding, BindingType
from textual.command import CommandPalette
from textual.screen import Screen
from textual.widgets import Footer

from cosine_protocol.errors import UsageError
from cosine_tui.looks.formatting import counted
from cosine_tui.looks.styled_text import clean, clean_text
from cosine_tui.looks.themes import DARK, LIGHT, THEMES
from cosine_tui.panes.headline import headline
from cosine_tui.panes.request import request_title
from cosine_tui.state.feed import FRAMES_PER_S, Feed
from cosine_tui.state.prompt_line import COMMANDS, CommandEntry
from cosine_tui.state.snapshot import RequestView, Snapshot
from cosine_tui.state.view import Listing, Order, Page, PageKind, PaneName, View
from cosine_tui.widgets.lines import LinePane, ListPane
from cosine_tui.widgets.pane_grid import PaneGrid
from cosine_tui.widgets.prompt_box import PromptBox

PALETTE_NODES: Final = 200  # Bounds the time to open the palette in a large swarm; `/filter` finds all nodes.


class MonitorApp(App[None]):
    """Shows a feed and sends it commands. Text goes to the prompt line, regardless of the focus."""

    CSS_PATH = Path(__file__).with_name("app.tcss")
    TITLE = "CoSine"
    AUTO_FOCUS = "#prompt-input"
    COMMAND_PALETTE_DISPLAY = "Ctrl+P"
    # Two panes fit side by side from 100 columns, all of them without cut tables from 130; three panes above each
    # other require 32 rows.
    HORIZONTAL_BREAKPOINTS = [(0, "-narrow"), (100, "-two"), (130, "-wide")]  # noqa: RUF012 - as below
    VERTICAL_BREAKPOINTS = [(0, "-short"), (32, "-tall")]  # noqa: RUF012 - the declaration of textual
    BINDINGS: ClassVar[list[BindingType]] = [
        *[
            Binding(
                command.key,
                f"run_command('{command.name}')",
                command.footer or command.name,
                key_display=command.key_label,
                show=bool(command.footer),
                priority=command.name == "quit",
            )
            for command in COMMANDS
            if command.key
        ],
        Binding("ctrl+c", "run_command('quit')", "Quit", show=False, priority=True),
        Binding("escape", "leave", "Back", show=False),
        Binding("pageup", "scroll(-1)", "Up", show=False),
        Binding("pagedown", "scroll(1)", "Down", show=False),
    ]

    def __init__(self, feed: Feed, *, theme: str = DARK) -> None:
        super().__init__()
        for known, _ in THEMES.values():
            self.register_theme(known)
        self._use_theme(theme)
        self.snapshot = Snapshot()
        self.failure: BaseException | None = None
        self.view = View(has_marks="NO_COLOR" in os.environ)
        self._feed = feed
        self._headline = LinePane(id="headline")
        self._headline.can_focus = False
        self._grid = PaneGrid(id="grid")
        self._prompt = PromptBox(id="prompt")
        self._performers: dict[str, Callable[..., None]] = {
            "help": partial(self._open_page, Page(PageKind.HELP)),
            "swarm": partial(self.show_pane, PaneName.SWARM),
            "requests": partial(self.show_pane, PaneName.REQUESTS),
            "request": self._show_request,
            "events": partial(self.show_pane, PaneName.EVENTS),
            "marks": self._toggle_marks,
            "before": partial(self._step_request, -1),
            "after": partial(self._step_request, 1),
            "latest": self.view.follow_latest,
            "details": self._open_request,
            "cancel": self._cancel,
            "copy": self._copy,
            "filter": self._filter,
            "sort": self._sort,
            "theme": self._toggle_theme,
            "quit": self._quit,
        }

    def compose(self) -> ComposeResult:
        yield self._headline
        yield self._grid
        yield self._prompt
        yield Footer(compact=True)

    def on_mount(self) -> None:
        self._feed.start()
        self.set_interval(1 / FRAMES_PER_S, self.update_snapshot)
        self._lay_out()
        self.call_after_refresh(self.update_snapshot)

    def on_unmount(self) -> None:
        self._feed.close()

    def on_resize(self) -> None:
        self.call_after_refresh(self.draw)

    async def on_event(self, event: events.Event) -> None:
        """Send typed and pasted text to the prompt line, before it is handled as a command."""
        if isinstance(event, events.Key | events.Paste) and not event.is_forwarded:
            is_text = isinstance(event, events.Paste) or event.is_printable
            if not isinstance(self.screen, CommandPalette) and (is_text or self.focused is None):
                self.screen.set_focus(self._prompt.input)
        await super().on_event(event)

    def on_prompt_box_entered(self, event: PromptBox.Entered) -> None:
        if isinstance(event.entry, CommandEntry):
            self.perform(event.entry.name, event.entry.argument)
            return
        self.view.forget_warning()
        self.view.follow_own(self.snapshot)
        self._feed.ask(event.entry.prompt, event.entry.options)
        self.show_pane(PaneName.REQUEST, takes_focus=False)

    def on_prompt_box_typed(self) -> None:
        self.view.forget_warning()

    def on_list_pane_selected(self, event: ListPane.Selected) -> None:
        if event.pane is self._grid.requests:
            self.view.pin_request(int(event.key))
            self.draw()

    def on_list_pane_chosen(self, event: ListPane.Chosen) -> None:
        kind = PageKind.NODE if event.pane is self._grid.swarm else PageKind.REQUEST
        self._open_page(Page(kind, event.key))

    def action_run_command(self, name: str) -> None:
        self.perform(name)

    async def action_quit(self) -> None:
        self.perform("quit")

    def action_leave(self) -> None:
        self.view.forget_warning()
        self._prompt.say("")
        self._close_page()
        self._prompt.input.focus()

    def action_scroll(self, pages: int) -> None:
        pane = self._grid.shown_pane(self.view)
        pane.focus()
        pane.scroll_relative(y=pages * max(1, pane.scrollable_content_region.height - 1), animate=False)

    def get_system_commands(self, screen: Screen[object]) -> Iterable[SystemCommand]:
        """Yield the commands of the palette: the monitor's, orders of the lists, nodes and requests."""
        for command in COMMANDS:
            if command.name != "filter":
                label = f"{command.name.capitalize()}{f' ({command.key_label})' if command.key else ''}"
                yield SystemCommand(label, command.what, partial(self.perform, command.name))
        for order in Order:
            yield SystemCommand(
                f"Sort by {order}", "the lists of nodes and requests", partial(self.perform, "sort", order)
            )
        for node in self.snapshot.nodes[:PALETTE_NODES]:
            show = partial(self._open_page, Page(PageKind.NODE, node.peer_id))
            yield SystemCommand(palette_title(f"Node {node.title}"), "everything about it", show)
        for request in self.snapshot.requests:
            show = partial(self._open_page, Page(PageKind.REQUEST, str(request.number)))
            yield SystemCommand(palette_title(request_title(request)), "everything about it", show)

    def perform(self, name: str, argument: str = "") -> None:
        """Perform a command; errors appear above the prompt line."""
        if name != "quit":
            self.view.forget_warning()
            self._prompt.say("")
        takes_argument = any(command.name == name and command.argument for command in COMMANDS)
        try:
            self._performers[name](*([argument] if takes_argument else []))
        except UsageError as error:
            self._prompt.say(f"✗ {error}", is_error=True)
        self.draw()

    def show_pane(self, name: PaneName, *, takes_focus: bool = True) -> None:
        self._close_page()
        self.view.pane = name
        self._lay_out()
        if takes_focus:
            self._grid.shown_pane(self.view).focus()

    def _show_request(self, number: str) -> None:
        known = [str(request.number) for request in self.snapshot.requests]
        if number and number not in known:
            there_are = f"there are {', '.join(known)}" if known else "none has been made yet"
            raise UsageError(f"There is no request {number!r} here; {there_are}.")
        if number:
            self.view.pin_request(int(number))
        self.show_pane(PaneName.REQUEST)

    def _open_request(self) -> None:
        request = self.shown_request
        if request is None:
            raise UsageError("Nothing has been asked yet.")
        self._open_page(Page(PageKind.REQUEST, str(request.number)))

    def _cancel(self) -> None:
        request = self.shown_request
        if request is None or not request.is_own or request.state.is_over:
            raise UsageError("Only your own running requests can be cancelled.")
        self._feed.cancel(request.number)

    def _copy(self) -> None:
        page, request = self.view.page, self.shown_request
        if page is not None and page.kind is PageKind.NODE:
            text, what = page.key, "The peer id"
        elif request is not None and request.text:
            text, what = "".join(run.text for run in request.text), f"The text of request {request.number}"
        else:
            raise UsageError("There is no text to copy yet.")
        self.copy_to_clipboard(clean_text(text))
        letters = counted(len(text), "character")
        self._prompt.say(f"{what}, {letters}, was given to the terminal's clipboard (OSC 52).")

    def _filter(self, words: str) -> None:
        self.view.listing = Listing(words, self.view.listing.order)

    def _sort(self, order: str) -> None:
        if order and order not in list(Order):
            raise UsageError(f"The lists cannot be sorted by {order!r}; choose one of {', '.join(Order)}.")
        listing = self.view.listing
        self.view.listing = Listing(listing.words, Order(order) if order else listing.order.next)
        self._prompt.say(f"The lists are in the order: {self.view.listing.order}.")

    def _toggle_marks(self) -> None:
        self.view.has_marks = not self.view.has_marks

    def _step_request(self, step: int) -> None:
        self.view.step_request(self.snapshot, step)

    def _toggle_theme(self) -> None:
        self._use_theme(LIGHT if self.theme == DARK else DARK)

    def _use_theme(self, name: str) -> None:
        self.theme = name
        self.console.push_theme(THEMES[name][1])

    def _quit(self) -> None:
        if self.view.may_quit(self.snapshot):
            self.exit()
            return
        numbers = self.view.own_running(self.snapshot)
        goes_on = f"{counted(len(numbers), 'request')} of yours still {'goes' if len(numbers) == 1 else 'go'} on"
        self._prompt.say(f"{goes_on}; quit once more to end that and leave.", is_error=True)

    def _open_page(self, page: Page) -> None:
        """Show a page in place of the panes, or close the help if it is open."""
        if self.view.page == page and page.kind is PageKind.HELP:
            self.action_leave()
            return
        self.view.page = page
        self._lay_out()
        self._grid.page.scroll_home(animate=False)
        self._grid.page.focus()

    def _close_page(self) -> None:
        if self.view.page is not None:
            self.view.page = None
            self._lay_out()

    def _lay_out(self) -> None:
        self._grid.lay_out(self.view)
        self.call_after_refresh(self.draw)

    @property
    def shown_request(self) -> RequestView | None:
        """The request of an open page, else the one that the view shows."""
        page = self.view.page
        if page is not None and page.kind is PageKind.REQUEST:
            return self.snapshot.request(int(page.key))
        return self.view.shown_request(self.snapshot)

    def draw(self) -> None:
        self._headline.show(headline(self.snapshot, self._headline.width))
        self._grid.draw(self.snapshot, self.view)
        self._prompt.show_defaults(self.snapshot.generation_defaults)

    def update_snapshot(self) -> None:
        error = self._feed.error()
        if error is not None:
            self.failure = error
            self.exit(return_code=1)
            return
        snapshot = self._feed.take()
        if snapshot is not None:
            self.snapshot = snapshot
            self.draw()


def palette_title(text: str) -> str:
    """Return a title for the palette without square brackets, which it would interpret as markup or an action."""
    return clean(text).translate({ord("["): "(", ord("]"): ")"})
