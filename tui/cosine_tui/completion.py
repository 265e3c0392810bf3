"""Completion of the prompt line: names of commands and options, and the values of those that have few."""

from dataclasses import dataclass
from typing import Final

from cosine_p2p.request.options import AUTO, NONE
from cosine_p2p.strategy.registry import STRATEGIES
from cosine_tui.commands import COMMANDS
from cosine_tui.listing import Order
from cosine_tui.prompt_line import OPTIONS, RESET, SWITCH, option_name

VALUES: Final = {
    "strategy": tuple(sorted(STRATEGIES)),
    "generation-config": (AUTO, NONE),
    SWITCH: ("on", "off"),
    "seed": ("random",),
    "sort": tuple(Order),
}
"""The values of options and commands that have few of them."""
_TAKES_ARGUMENT: Final = {*OPTIONS, *(command.name for command in COMMANDS if command.argument)}


@dataclass(frozen=True, slots=True)
class LineCompletion:
    """The line as far as it is certain, and the words that its last one can become."""

    line: str
    candidates: tuple[str, ...]


def complete(line: str) -> LineCompletion:
    """Complete the last word of a line; without candidates there is nothing to complete."""
    head, _, candidates = _last_word(line)
    if not candidates:
        return LineCompletion(line, ())
    common = candidates[0]
    while not all(candidate.startswith(common) for candidate in candidates):
        common = common[:-1]
    end = " " if len(candidates) == 1 and common.lstrip("/-") in _TAKES_ARGUMENT else ""
    return LineCompletion(head + common + end, candidates)


def suggestion(line: str) -> str | None:
    """The line completed with the first candidate, None without one or before anything is typed."""
    head, word, candidates = _last_word(line)
    return head + candidates[0] if candidates and word and candidates[0] != word else None


def _last_word(line: str) -> tuple[str, str, tuple[str, ...]]:
    """The line before its last word, that word, and what it can become."""
    start = line.rfind(" ") + 1
    head, word = line[:start], line[start:]
    before = head.split()
    if not before:
        if word.startswith("/") and not word.startswith("//"):
            names = [*(command.name for command in COMMANDS), *OPTIONS, RESET]
            return head, word, tuple(f"/{name}" for name in names if f"/{name}".startswith(word.lower()))
        return head, word, _options(word)
    last = before[-1]
    if last.startswith("/"):
        values = VALUES.get(option_name(last[1:]), ()) if len(before) == 1 else ()
        return head, word, tuple(value for value in values if value.startswith(word))
    if not _is_in_options(before):
        return head, word, ()
    name = option_name(last[2:])
    if last.startswith("--") and "=" not in last and name != SWITCH:
        return head, word, tuple(value for value in VALUES.get(name, ()) if value.startswith(word))
    return head, word, _options(word)


def _options(word: str) -> tuple[str, ...]:
    return (
        tuple(f"--{name}" for name in OPTIONS if f"--{name}".startswith(word.lower())) if word[:2] == "--" else ()
    )


def _is_in_options(words: list[str]) -> bool:
    """True if only options and their values stand before the last word: the prompt has not begun."""
    takes_value = False
    for word in words:
        if takes_value:
            takes_value = False
        elif word.startswith("--") and word != "--":
            takes_value = "=" not in word and option_name(word[2:]) != SWITCH
        else:
            return False
    return True
