"""The language of the prompt line: prompts, options and commands; parsing and completing a line, history."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Final

from cosine_p2p.request.model_defaults import apply_defaults
from cosine_p2p.request.options import AUTO, NONE, TEXT_DEFAULTS, GenerationOptions, merge_options
from cosine_p2p.strategy.registry import STRATEGIES
from cosine_protocol.errors import UsageError
from cosine_protocol.records import GenerationDefaults
from cosine_tui.state.view import Order


@dataclass(frozen=True, slots=True, kw_only=True)
class MonitorCommand:
    """One command. `key` is Textual's name, `argument` an optional argument, `footer` its word in the footer."""

    name: str
    what: str
    key: str = ""
    argument: str = ""
    footer: str = ""

    @property
    def key_label(self) -> str:
        """The key for people: `F1`, `Ctrl+G`."""
        return self.key.title()

    @property
    def usage(self) -> str:
        return f"/{self.name} {self.argument}".rstrip()


COMMANDS: Final = (
    MonitorCommand(name="help", what="keys, commands and signs", key="f1", footer="Help"),
    MonitorCommand(name="swarm", what="the nodes; Enter shows all of the selected one", key="f2"),
    MonitorCommand(name="requests", what="the requests and who drafts for whom; Enter as above", key="f3"),
    MonitorCommand(name="request", what="the text of a request, or of request N", key="f4", argument="N"),
    MonitorCommand(name="events", what="what happened", key="f5"),
    MonitorCommand(name="marks", what="each drafter's letter before its tokens", key="f6"),
    MonitorCommand(name="before", what="the request before the one that is shown", key="f7"),
    MonitorCommand(name="after", what="the request after the one that is shown", key="f8"),
    MonitorCommand(name="latest", what="whatever is written now, whoever asked for it", key="f9"),
    MonitorCommand(name="details", what="everything about the shown request", key="ctrl+o"),
    MonitorCommand(name="cancel", what="end the shown request, if it is yours", key="ctrl+g", footer="Cancel"),
    MonitorCommand(name="copy", what="its text, or a node's peer id, for pasting", key="ctrl+y", footer="Copy"),
    MonitorCommand(name="filter", what="show only nodes and requests with these words", argument="WORDS"),
    MonitorCommand(name="sort", what="order the lists; the key takes the next one", key="ctrl+s", argument="ORDER"),
    MonitorCommand(name="theme", what="dark or light", key="ctrl+t"),
    MonitorCommand(name="quit", what="leave; asks while a request of yours goes on", key="ctrl+q", footer="Quit"),
)
"""The commands in the order of the help."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """Options of the next prompts; without `seed` one is drawn for each, None is the model's default."""

    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    max_new_tokens: int | None = None
    generation_config: str = AUTO
    seed: int | None = None
    strategy: str = "cosine"
    is_chat: bool = False

    def asked(self) -> dict[str, Any]:
        values = {name: getattr(self, name) for name in ("temperature", "top_p", "top_k", "max_new_tokens")}
        return {name: value for name, value in values.items() if value is not None}

    def summary(self, published: GenerationDefaults | None = None) -> str:
        """Return the options in one line, with the target's published defaults for missing ones."""
        own = published if self.generation_config == AUTO else None
        applied = apply_defaults(own, asked=self.asked(), otherwise=TEXT_DEFAULTS)
        text: dict[str, Any] = {**TEXT_DEFAULTS, **applied.options, **self.asked()}
        parts = [
            self.strategy,
            f"temperature {text['temperature']:g}" if text["temperature"] else "greedy",
            f"top-p {text['top_p']:g}" if text["top_p"] < 1 else "",
            f"top-k {text['top_k']}" if text["top_k"] else "",
            f"penalty {text['repetition_penalty']:g}" if text["repetition_penalty"] != 1 else "",
            f"{text['max_new_tokens']} tokens",
            "" if self.seed is None else f"seed {self.seed}",
            "chat" if self.is_chat else "",
        ]
        return " · ".join(filter(None, parts))


@dataclass(frozen=True, slots=True)
class LineOption:
    """An option of the line: field, example, and `values` if they are few; `read` raises `ValueError`."""

    field: str
    example: str
    read: Callable[[str], Any]
    values: tuple[str, ...] = ()


SWITCH: Final = "chat"  # The option whose `--` form needs no value, as on the command line.
RESET: Final = "reset"  # The command that restores the initial options.
OPTIONS: Final = {
    "temperature": LineOption("temperature", "0.8", float),
    "top-p": LineOption("top_p", "0.95", float),
    "top-k": LineOption("top_k", "40", int),
    "tokens": LineOption("max_new_tokens", "256", int),
    "generation-config": LineOption("generation_config", "none", str, (AUTO, NONE)),
    "seed": LineOption("seed", "7", lambda value: None if value == "random" else int(value), ("random",)),
    "strategy": LineOption("strategy", "plain", str, tuple(sorted(STRATEGIES))),
    SWITCH: LineOption("is_chat", "on", lambda value: ("off", "on").index(value) == 1, ("on", "off")),
}
"""The options by name."""
_VALUES: Final = {"sort": tuple(Order), **{name: option.values for name, option in OPTIONS.items()}}
KEPT_LINES: Final = 200
_TAKES_ARGUMENT: Final = {*OPTIONS, *(command.name for command in COMMANDS if command.argument)}


@dataclass(frozen=True, slots=True)
class PromptEntry:
    """A prompt and the options to generate with."""

    prompt: str
    options: Options


@dataclass(frozen=True, slots=True)
class OptionChange:
    """New options from now on, and a notice of the changes."""

    options: Options
    notice: str


@dataclass(frozen=True, slots=True)
class CommandEntry:
    """A command of the monitor and its argument."""

    name: str
    argument: str


def read_entry(line: str, options: Options) -> PromptEntry | OptionChange | CommandEntry | None:
    """Parse a line; None for an empty one.

    `/name value` is a command, or an option from now on; `//` begins a prompt with a slash. `--name value` before a
    prompt is an option of that prompt, without one from now on; `--` alone ends the options. Raises `UsageError`.
    """
    text = line.strip()
    if not text:
        return None
    if text.startswith("//"):
        return PromptEntry(text[1:], options)
    if text.startswith("/"):
        word, _, value = text[1:].partition(" ")
        name, value = _option_name(word), value.strip()
        if any(name == command.name for command in COMMANDS):
            return CommandEntry(name, value)
        if name == RESET:
            return OptionChange(Options(), "All options are as at the start.")
        if name not in OPTIONS:
            raise UsageError(f"There is no command /{word}; Tab lists them, and // begins a prompt with a slash.")
        return OptionChange(_changed(options, f"/{name}", name, value), f"{name} is {value} from now on.")
    return _with_options(text, options)


def _with_options(text: str, options: Options) -> PromptEntry | OptionChange:
    """Parse a prompt after its options, or options alone."""
    rest, changes = text, []
    while rest.startswith("--"):
        word, _, rest = rest.partition(" ")
        rest = rest.strip()
        if word == "--":
            break
        shown, has_value, value = word.partition("=")
        name = _option_name(shown[2:])
        if name not in OPTIONS:
            raise UsageError(f"There is no option {shown}; Tab lists them, and -- alone ends the options.")
        if not has_value and name == SWITCH:
            value = "on"
        elif not has_value:
            value, _, rest = rest.partition(" ")
        options = _changed(options, f"--{name}", name, value)
        changes.append(f"{name} is {value}")
        rest = rest.strip()
    if rest:
        return PromptEntry(rest, options)
    if not changes:
        raise UsageError("There is no prompt behind --.")
    return OptionChange(options, f"{', '.join(changes)} from now on.")


def _option_name(word: str) -> str:
    """Return the name of an option, also in the form of `cosine generate`."""
    name = word.lower().replace("_", "-")
    return "tokens" if name == "max-new-tokens" else name


def _changed(options: Options, shown: str, name: str, value: str) -> Options:
    """Return the options with one change. Raises `UsageError`."""
    option = OPTIONS[name]
    if not value:
        raise UsageError(f"{shown} needs a value, for example {shown} {option.example}.")
    if name == "strategy" and value not in STRATEGIES:
        raise UsageError(f"There is no strategy {value!r}; choose one of {', '.join(option.values)}.")
    try:
        read = option.read(value)
        if name != SWITCH:
            merge_options({}, {option.field: read}, GenerationOptions)
    except (ValueError, OverflowError, UsageError) as error:
        what = f" ({error})" if isinstance(error, UsageError) else ""
        raise UsageError(f"{shown} cannot be {value!r}{what}; for example {shown} {option.example}.") from None
    return replace(options, **{option.field: read})


def complete(line: str) -> tuple[str, tuple[str, ...]]:
    """Return the line with its last word completed if unambiguous, and the possible words, if any."""
    head, _, candidates = _last_word(line)
    if not candidates:
        return line, ()
    common = candidates[0]
    while not all(candidate.startswith(common) for candidate in candidates):
        common = common[:-1]
    end = " " if len(candidates) == 1 and common.lstrip("/-") in _TAKES_ARGUMENT else ""
    return head + common + end, candidates


def suggestion(line: str) -> str | None:
    """Return the line completed with the first candidate, if any."""
    head, word, candidates = _last_word(line)
    return head + candidates[0] if candidates and word and candidates[0] != word else None


def _last_word(line: str) -> tuple[str, str, tuple[str, ...]]:
    """Return the line before its last word, this word, and its possible completions."""
    start = line.rfind(" ") + 1
    head, word = line[:start], line[start:]
    before = head.split()
    known: tuple[str, ...] = ()
    if not before and word.startswith("/"):
        known = tuple(f"/{name}" for name in (*(command.name for command in COMMANDS), *OPTIONS, RESET))
    elif before and before[0].startswith("/"):
        known = _VALUES.get(_option_name(before[0][1:]), ()) if len(before) == 1 else ()
    else:
        # Options are completed until the prompt begins.
        wanted = ""
        for each in before:
            if wanted:
                wanted = ""
            elif not each.startswith("--") or each == "--":
                return head, word, ()
            elif "=" not in each and _option_name(each[2:]) != SWITCH:
                wanted = _option_name(each[2:])
        known = _VALUES.get(wanted, ()) if wanted else tuple(f"--{name}" for name in OPTIONS if word[:2] == "--")
    typed = word.lower() if word[:1] in "/-" else word
    return head, word, tuple(each for each in known if each.startswith(typed))


class History:
    """Earlier lines; `older` and `newer` move through them, and back to the present line."""

    def __init__(self) -> None:
        self._lines: list[str] = []
        self._index = 0
        self._unsent = ""

    def add(self, line: str) -> None:
        if line.strip() and self._lines[-1:] != [line]:
            self._lines = [*self._lines, line][-KEPT_LINES:]
        self._index = len(self._lines)

    def older(self, line: str) -> str:
        if self._index == 0:
            return line
        if self._index == len(self._lines):
            self._unsent = line
        self._index -= 1
        return self._lines[self._index]

    def newer(self, line: str) -> str:
        if self._index == len(self._lines):
            return line
        self._index += 1
        return self._lines[self._index] if self._index < len(self._lines) else self._unsent
