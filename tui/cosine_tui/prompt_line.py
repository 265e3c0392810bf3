"""Lines typed into the prompt box: text to generate from, options, or a command of the monitor."""

import math
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Any, Final

from cosine_p2p.request.generation_config import apply_defaults
from cosine_p2p.request.options import AUTO, NONE, TEXT_DEFAULTS
from cosine_p2p.strategy.registry import STRATEGIES
from cosine_protocol.errors import UsageError
from cosine_protocol.records import GenerationDefaults
from cosine_protocol.request import Sampling
from cosine_tui.commands import BY_NAME

MAX_TOKENS: Final = 1 << 20
"""Beyond the context of any model; the swarm refuses what is too long for its own."""
SEEDS: Final = 1 << 63
"""Seeds on the wire are below this."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """The options that the next prompts are generated with. Without `seed` one is drawn for each.

    Those that are None are as the model's own generation config has them, unless `generation_config` is `none`.
    """

    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    max_new_tokens: int | None = None
    generation_config: str = AUTO
    seed: int | None = None
    strategy: str = "cosine"
    is_chat: bool = False

    def asked(self) -> dict[str, Any]:
        """The options of the text that are given."""
        values = {name: getattr(self, name) for name in ("temperature", "top_p", "top_k", "max_new_tokens")}
        return {name: value for name, value in values.items() if value is not None}

    def summary(self, published: GenerationDefaults | None = None) -> str:
        """The options in one line, with what the target's verifiers publish in place of what is not given."""
        own = published if self.generation_config == AUTO else None
        applied = apply_defaults(own, asked=self.asked(), otherwise=TEXT_DEFAULTS)
        text: dict[str, Any] = {**TEXT_DEFAULTS, **applied.options, **self.asked()}
        heat = f"temperature {text['temperature']:g}" if text["temperature"] else "greedy"
        nucleus = f" · top-p {text['top_p']:g}" if text["top_p"] < 1 else ""
        top = f" · top-k {text['top_k']}" if text["top_k"] else ""
        penalty = f" · penalty {text['repetition_penalty']:g}" if text["repetition_penalty"] != 1 else ""
        seed = "" if self.seed is None else f" · seed {self.seed}"
        chat = " · chat" if self.is_chat else ""
        length = f" · {text['max_new_tokens']} tokens"
        return f"{self.strategy} · {heat}{nucleus}{top}{penalty}{length}{seed}{chat}"


@dataclass(frozen=True, slots=True)
class PromptEntry:
    """A prompt to generate from with these options."""

    prompt: str
    options: Options


@dataclass(frozen=True, slots=True)
class OptionChange:
    """Other options from now on, and a notice of what changed."""

    options: Options
    notice: str


@dataclass(frozen=True, slots=True)
class CommandEntry:
    """A command of the monitor and what follows its name."""

    name: str
    argument: str


Entry = PromptEntry | OptionChange | CommandEntry


def read_entry(line: str, options: Options) -> Entry | None:
    """The entry in a line, None for an empty one.

    `/name value` is a command, or an option from now on; a line that begins with // is a prompt that begins with /.
    `--name value` before a prompt is an option of that prompt, without a prompt an option from now on; `--` alone
    ends the options. Raises `UsageError` for what does not exist or a value that an option cannot have.
    """
    text = line.strip()
    if not text:
        return None
    if text.startswith("//"):
        return PromptEntry(text[1:], options)
    if text.startswith("/"):
        word, _, value = text[1:].partition(" ")
        name = option_name(word)
        if name in BY_NAME:
            return CommandEntry(name, value.strip())
        if name == RESET:
            return OptionChange(Options(), "All options are as at the start.")
        if name not in OPTIONS:
            raise UsageError(f"There is no command /{word}; Tab lists them, and // begins a prompt with a slash.")
        return OptionChange(
            _changed(options, f"/{name}", name, value.strip()), f"{name} is {value.strip()} from now on."
        )
    return _with_options(text, options)


def option_name(word: str) -> str:
    """The name that a word on the line stands for."""
    name = word.lower().replace("_", "-")
    return _ALIASES.get(name, name)


def _with_options(text: str, options: Options) -> Entry:
    """A prompt behind the options of its own."""
    changed, rest, names = options, text, []
    while rest.startswith("--"):
        word, _, rest = rest.partition(" ")
        rest = rest.strip()
        if word == "--":
            break
        shown, has_value, value = word.partition("=")
        name = option_name(shown[2:])
        if name not in OPTIONS:
            raise UsageError(f"There is no option {shown}; Tab lists them, and -- alone ends the options.")
        if not has_value:
            if name == SWITCH:
                value = "on"
            else:
                value, _, rest = rest.partition(" ")
        changed = _changed(changed, f"--{name}", name, value)
        names.append(f"{name} is {value}")
        rest = rest.strip()
    if rest:
        return PromptEntry(rest, changed)
    if not names:
        raise UsageError("There is no prompt behind --.")
    return OptionChange(changed, f"{', '.join(names)} from now on.")


def _changed(options: Options, shown: str, name: str, value: str) -> Options:
    """The options with another value of one. Raises `UsageError`."""
    if not value:
        raise UsageError(f"{shown} needs a value, for example {shown} {OPTIONS[name]}.")
    field, read = _READERS[name]
    if name == "strategy" and value not in STRATEGIES:
        raise UsageError(f"There is no strategy {value!r}; choose one of {', '.join(sorted(STRATEGIES))}.")
    try:
        changed = replace(options, **{field: read(value)})
        _check(changed)
    except (ValueError, OverflowError, UsageError) as error:
        what = f" ({error})" if isinstance(error, UsageError) else ""
        raise UsageError(f"{shown} cannot be {value!r}{what}; for example {shown} {OPTIONS[name]}.") from None
    return changed


def _check(options: Options) -> None:
    asked = options.asked()
    if not 1 <= asked.pop("max_new_tokens", 1) <= MAX_TOKENS:
        raise ValueError("tokens")
    if options.seed is not None and not 0 <= options.seed < SEEDS:
        raise ValueError("seed")
    temperature, top_p = asked.get("temperature", 0.0), asked.get("top_p", 1.0)
    if not (math.isfinite(temperature) and temperature >= 0 and 0 < top_p <= 1):
        raise ValueError("temperature")
    if asked.get("top_k", 0) < 0:
        raise ValueError("top-k")
    if options.generation_config not in (AUTO, NONE):
        raise ValueError("generation-config")
    Sampling(**asked, seed=options.seed or 0)


def _seed(value: str) -> int | None:
    return None if value == "random" else int(value)


def _switch(value: str) -> bool:
    if value not in ("on", "off"):
        raise ValueError(value)
    return value == "on"


# Options by name: the field of `Options` and the reader of its value.
_READERS: Final[dict[str, tuple[str, Callable[[str], Any]]]] = {
    "temperature": ("temperature", float),
    "top-p": ("top_p", float),
    "top-k": ("top_k", int),
    "tokens": ("max_new_tokens", int),
    "generation-config": ("generation_config", str),
    "seed": ("seed", _seed),
    "strategy": ("strategy", str),
    "chat": ("is_chat", _switch),
}
OPTIONS: Final = {
    "temperature": "0.8",
    "top-p": "0.95",
    "top-k": "40",
    "tokens": "256",
    "generation-config": "none",
    "seed": "7",
    "strategy": "plain",
    "chat": "on",
}
"""Option names with an example of a value each."""
SWITCH: Final = "chat"
"""The option that `--` switches on without a value, as on the command line."""
RESET: Final = "reset"
"""Typed as a command, it brings back the options of the start."""
_ALIASES: Final = {"max-new-tokens": "tokens"}
"""Names of `cosine-node generate` that are shorter here."""
assert {field for field, _ in _READERS.values()} == {field.name for field in fields(Options)}


class History:
    """Lines typed before; `older` and `newer` walk through them, from the line being typed and back to it."""

    def __init__(self, limit: int = 200) -> None:
        self._lines: list[str] = []
        self._limit = limit
        self._index = 0
        self._unsent = ""

    def add(self, line: str) -> None:
        """Remember a line and go back to the end; a repeated one counts once."""
        if line.strip() and self._lines[-1:] != [line]:
            self._lines = [*self._lines, line][-self._limit :]
        self._index = len(self._lines)

    def older(self, line: str) -> str:
        """The line before `line`, which is itself where there is none before."""
        if self._index == 0:
            return line
        if self._index == len(self._lines):
            self._unsent = line
        self._index -= 1
        return self._lines[self._index]

    def newer(self, line: str) -> str:
        """The line after `line`; behind the last comes what was typed and not sent."""
        if self._index == len(self._lines):
            return line
        self._index += 1
        return self._lines[self._index] if self._index < len(self._lines) else self._unsent
