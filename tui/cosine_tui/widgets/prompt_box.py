"""The line at the bottom where prompts are typed."""

from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal
from textual.message import Message
from textual.widgets import Input, Static

from cosine_protocol.errors import UsageError
from cosine_tui.prompt_line import History, OptionChange, Options, PromptEntry, read_entry
from cosine_tui.styled_text import clean


class PromptInput(Input):
    """An input with a history."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up", "older", "Older", show=False),
        Binding("down", "newer", "Newer", show=False),
    ]

    def __init__(self, *, id: str) -> None:
        super().__init__(id=id, compact=True, placeholder="p types a prompt, / an option", select_on_focus=False)
        self.history = History()

    def action_older(self) -> None:
        line = self.history.older()
        if line is not None:
            self._put(line)

    def action_newer(self) -> None:
        self._put(self.history.newer())

    def _put(self, line: str) -> None:
        self.value = line
        self.cursor_position = len(line)


class PromptBox(Horizontal):
    """A prompt and the options it is sent with. Posts `Sent`."""

    class Sent(Message):
        """A prompt to generate from."""

        def __init__(self, prompt: str, options: Options) -> None:
            super().__init__()
            self.prompt = prompt
            self.options = options

    def __init__(self, *, id: str) -> None:
        super().__init__(id=id)
        self.options = Options()
        self.input = PromptInput(id="prompt-input")
        self.status = ""
        self._status = Static(id="prompt-status", markup=False)

    def compose(self) -> ComposeResult:
        yield Static("> ", id="prompt-sign", markup=False)
        yield self.input
        yield self._status

    def on_mount(self) -> None:
        self._show_status(self.options.summary())

    def open(self, text: str = "") -> None:
        """Take the keys; `text` is typed already."""
        self.input.focus()
        if text:
            self.input.value = text
            self.input.cursor_position = len(text)

    def on_input_changed(self) -> None:
        self._show_status(self.options.summary())

    def on_input_submitted(self, event: Input.Submitted) -> None:
        event.stop()
        try:
            entry = read_entry(event.value, self.options)
        except UsageError as error:
            self._show_status(f"✗ {error}", is_error=True)
            return
        self.input.history.add(event.value)
        self.input.value = ""
        match entry:
            case PromptEntry(prompt):
                self.post_message(self.Sent(prompt, self.options))
            case OptionChange(options, notice):
                self.options = options
                self.notify(notice, timeout=3)

    def _show_status(self, text: str, *, is_error: bool = False) -> None:
        self.status = text
        self._status.set_class(is_error, "-error")
        self._status.update(clean(text))
