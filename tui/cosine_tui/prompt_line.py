"""Lines typed into the prompt box: text to generate from, or `/name value` for an option."""

import math
from collections.abc import Callable, Collection
from dataclasses import dataclass, fields, replace
from typing import Any, Final

from cosine_p2p.strategies import STRATEGIES
from cosine_protocol.errors import UsageError
from cosine_protocol.request import Sampling

MAX_TOKENS: Final = 1 << 20
"""Beyond the context of any model; the swarm refuses what is too long for its own."""
SEEDS: Final = 1 << 63
"""Seeds on the wire are below this."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """The options that the next prompts are generated with. Without `seed` one is drawn for each."""

    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    max_new_tokens: int = 128
    seed: int | None = None
    strategy: str = "cosine"
    is_chat: bool = False

    def summary(self) -> str:
        """The options in one line."""
        heat = "greedy" if self.temperature == 0 else f"temperature {self.temperature:g}"
        nucleus = f" · top-p {self.top_p:g}" if self.top_p < 1 else ""
        top = f" · top-k {self.top_k}" if self.top_k else ""
        seed = "" if self.seed is None else f" · seed {self.seed}"
        chat = " · chat" if self.is_chat else ""
        return f"{self.strategy} · {heat}{nucleus}{top} · {self.max_new_tokens} tokens{seed}{chat}"


@dataclass(frozen=True, slots=True)
class PromptEntry:
    """A prompt to generate from."""

    prompt: str


@dataclass(frozen=True, slots=True)
class OptionChange:
    """Other options from now on, and a notice of what changed."""

    options: Options
    notice: str


Entry = PromptEntry | OptionChange


def read_entry(line: str, options: Options, *, strategies: Collection[str] = tuple(STRATEGIES)) -> Entry | None:
    """The entry in a line, None for an empty one; a line that begins with // is a prompt that begins with /.

    Raises `UsageError` for an option that does not exist or a value it cannot have.
    """
    text = line.strip()
    if not text:
        return None
    if text.startswith("//"):
        return PromptEntry(text[1:])
    if not text.startswith("/"):
        return PromptEntry(text)
    name, _, value = text[1:].partition(" ")
    return _changed(name.lower().replace("_", "-"), value.strip(), options, strategies)


def _changed(name: str, value: str, options: Options, strategies: Collection[str]) -> OptionChange:
    if name == "reset":
        return OptionChange(Options(), "options are as at the start")
    if name not in _READERS:
        raise UsageError(f"There is no option /{name}; there are {', '.join(f'/{known}' for known in OPTIONS)}.")
    if not value:
        raise UsageError(f"/{name} needs a value, for example /{name} {OPTIONS[name]}.")
    field, read = _READERS[name]
    if name == "strategy" and value not in strategies:
        raise UsageError(f"There is no strategy {value!r}; choose one of {', '.join(sorted(strategies))}.")
    try:
        changed = replace(options, **{field: read(value)})
        _check(changed)
    except (ValueError, OverflowError, UsageError) as error:
        what = f" ({error})" if isinstance(error, UsageError) else ""
        raise UsageError(f"/{name} cannot be {value!r}{what}; for example /{name} {OPTIONS[name]}.") from None
    return OptionChange(changed, f"{name} is {value} from now on")


def _check(options: Options) -> None:
    if not 1 <= options.max_new_tokens <= MAX_TOKENS:
        raise ValueError("tokens")
    if options.seed is not None and not 0 <= options.seed < SEEDS:
        raise ValueError("seed")
    if not (math.isfinite(options.temperature) and options.temperature >= 0 and 0 < options.top_p <= 1):
        raise ValueError("temperature")
    if options.top_k < 0:
        raise ValueError("top-k")
    Sampling(temperature=options.temperature, top_k=options.top_k, top_p=options.top_p, seed=options.seed or 0)


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
    "seed": ("seed", _seed),
    "strategy": ("strategy", str),
    "chat": ("is_chat", _switch),
}
OPTIONS: Final = {
    "temperature": "0.8",
    "top-p": "0.95",
    "top-k": "40",
    "tokens": "256",
    "seed": "7",
    "strategy": "plain",
    "chat": "on",
    "reset": "",
}
"""Option names with an example of a value each."""
assert {field for field, _ in _READERS.values()} == {field.name for field in fields(Options)}


class History:
    """Lines typed before; `older` and `newer` walk through them."""

    def __init__(self, limit: int = 200) -> None:
        self._lines: list[str] = []
        self._limit = limit
        self._index = 0

    def add(self, line: str) -> None:
        """Remember a line and go back to the end; a repeated one counts once."""
        if line.strip() and self._lines[-1:] != [line]:
            self._lines = [*self._lines, line][-self._limit :]
        self._index = len(self._lines)

    def older(self) -> str | None:
        """The line before, None at the first."""
        if self._index == 0:
            return None
        self._index -= 1
        return self._lines[self._index]

    def newer(self) -> str:
        """The line after, empty behind the last."""
        self._index = min(self._index + 1, len(self._lines))
        return self._lines[self._index] if self._index < len(self._lines) else ""
