"""The input line at the bottom for prompts, options and commands, with notices above it."""

from collections.abc import Callable
from typing import ClassVar, Final

from textual import events
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical
from textual.message import Message
from textual.suggester import Suggester
from textual.widgets import Input, Static

from cosine_protocol.errors import UsageError
from cosine_protocol.records import GenerationDefaults
from cosine_tui.looks.styled_text import clean
from cosine_tui.state.prompt_line import (
    CommandEntry,
    History,
    OptionChange,
    Options,
    PromptEntry,
    complete,
    read_entry,
    suggestion,
)


class LineSuggester(Suggester):
    """Shows the completion behind the cursor; the right arrow accepts it."""

    async def get_suggestion(self, value: str) -> str | None:
        return suggestion(value)


class PromptInput(Input):
    """An input with history. `accept` returns True for a valid line; `say` shows completions."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up", "older", "Older", show=False),
        Binding("down", "newer", "Newer", show=False),
        Binding("tab", "complete", "Complete", show=False),
    ]

    def __init__(self, accept: Callable[[str], bool], say: Callable[[str], None], *, id: str) -> None:
        super().__init__(
            id=id,
            compact=True,
            placeholder="a prompt, or / for commands",
            select_on_focus=False,
            suggester=LineSuggester(case_sensitive=True),
        )
        # A blinking cursor causes repaints over ssh, and screenshots would depend on the moment.
        self.cursor_blink = False
        self._accept = accept
        self._say = say
        self._history = History()

    async def on_key(self, event: events.Key) -> None:
        """Edit at once: a binding would wait for the app, and later keys would overtake it."""
        action = EDITING.get(event.key)
        if action is not None:
            event.stop()
            event.prevent_default()
            await self.run_action(action)

    async def action_submit(self) -> None:
        # At once, not by a message: further keys belong to the next line.
        line = self.value
        if self._accept(line):
            self._history.add(line)
            self.value = ""

    def action_older(self) -> None:
        self._put(self._history.older(self.value))

    def action_newer(self) -> None:
        self._put(self._history.newer(self.value))

    def action_complete(self) -> None:
        line, candidates = complete(self.value)
        if not candidates:
            self.screen.focus_next()
            return
        self._put(line)
        if len(candidates) > 1:
            self._say("  ".join(candidates))

    def on_paste(self, event: events.Paste) -> None:
        """Insert pasted lines as one, cleaned."""
        event.stop()
        event.prevent_default()
        self.replace(clean(" ".join(event.text.splitlines()).replace("\t", " ")), *self.selection)

    def _put(self, line: str) -> None:
        self.value = line
        self.cursor_position = len(line)


EDITING: Final = {
    key: binding.action
    for binding in (*Input.BINDINGS, *PromptInput.BINDINGS)
    if isinstance(binding, Binding)
    for key in binding.key.split(",")
}


class PromptBox(Vertical):
    """The input line, a notice above it, and the options of prompts. Posts `Entered`."""

    class Entered(Message):
        def __init__(self, entry: PromptEntry | CommandEntry) -> None:
            super().__init__()
            self.entry = entry

    class Typed(Message):
        """The line is now a text other than a command."""

    def __init__(self, *, id: str) -> None:
        super().__init__(id=id)
        self.options = Options()
        self._published: GenerationDefaults | None = None
        self.input = PromptInput(self._accept, self.say, id="prompt-input")
        self.notice = ""
        self._said_to = ""
        self._notice = Static(id="notice", markup=False)
        self._status = Static(id="prompt-status", markup=False)

    def compose(self) -> ComposeResult:
        yield self._notice
        with Horizontal(id="prompt-line"):
            yield Static("> ", id="prompt-sign", markup=False)
            yield self.input
            yield self._status

    def on_mount(self) -> None:
        self._notice.display = False
        self._status.update(self.options.summary(self._published))

    def show_defaults(self, published: GenerationDefaults | None) -> None:
        if published != self._published:
            self._published = published
            self._status.update(self.options.summary(published))

    def say(self, text: str, *, is_error: bool = False) -> None:
        """Show a notice above the line until the next notice or input; "" shows none."""
        self.notice, self._said_to = text, self.input.value
        self._notice.display = bool(text)
        self._notice.set_class(is_error, "-error")
        self._notice.update(clean(text))

    def on_input_changed(self, event: Input.Changed) -> None:
        # The value of the event may be older than the notice.
        if self.input.value != self._said_to:
            self.say("")
        if event.value and not event.value.startswith("/"):
            self.post_message(self.Typed())

    def _accept(self, line: str) -> bool:
        """Perform a line; return False, with a notice, for an invalid one."""
        try:
            entry = read_entry(line, self.options)
        except UsageError as error:
            self.say(f"✗ {error}", is_error=True)
            return False
        self.say("")
        if isinstance(entry, OptionChange):
            self.options = entry.options
            self._status.update(entry.options.summary(self._published))
            self.say(entry.notice)
        elif entry is not None:
            self.post_message(self.Entered(entry))
        self._said_to = ""
        return True
