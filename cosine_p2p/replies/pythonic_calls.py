"""Calls in Python's syntax, `[f(a=1), g(b="x")]`: Llama 4 and 3.2, LFM2."""

import ast
import re
from collections.abc import Generator
from dataclasses import dataclass
from typing import Any, Final

from cosine_p2p.replies.calls import MAX_NAME, Calls, written
from cosine_p2p.replies.intake import Intake, Reading

_NAME: Final = re.compile(r"[\w.\-]+")


@dataclass(frozen=True, slots=True, kw_only=True)
class PythonicCalls:
    """A list of calls with named literals of Python or JSON. One that begins with "[" must name known tools."""

    begins: tuple[str, ...] = ("[",)
    ends: str = ""

    @property
    def marks(self) -> tuple[str, ...]:
        return self.begins

    @property
    def told(self) -> tuple[str, ...]:
        return (*self.begins, self.ends)

    def read(self, intake: Intake, calls: Calls) -> Reading[bool]:
        begun = calls.begun
        mark = yield from intake.taken_of(self.begins)
        if mark != "[":
            yield from intake.blank()
            yield from intake.takes("[")
        after = intake.at
        while True:
            yield from intake.blank()
            name, found = yield from intake.until(("(", ")", "]", "\n"), most=MAX_NAME)
            name = name.strip(" ,")
            if found != "(" or not _NAME.fullmatch(name) or (mark == "[" and name not in calls.tools):
                break
            intake.skip(1)
            yield calls.begin(name)
            is_whole = yield from self._read_arguments(intake, calls)
            after = intake.at
            if not is_whole:
                break
            calls.end()
        if calls.begun > begun:
            intake.at = after
            yield from intake.blank()
            if (yield from intake.takes("]")):
                after = intake.at
                yield from intake.blank()
                if (yield from intake.takes(self.ends)):
                    after = intake.at
        intake.at = after
        return calls.begun > begun

    def _read_arguments(self, intake: Intake, calls: Calls) -> Reading[bool]:
        between = "{"
        while True:
            yield from intake.blank()
            if (yield from intake.takes(")")):
                yield calls.more("{}" if between == "{" else "}")
                return True
            if (yield from intake.takes(",")):
                continue
            name, found = yield from intake.until(("=", ")"), most=MAX_NAME)
            if found != "=":
                return False
            intake.skip(1)
            text, is_whole = yield from _literal(intake)
            if not is_whole:
                return False
            yield calls.more(f"{between}{written(name.strip())}: {_json_of(text)}")
            between = ", "


def _literal(intake: Intake) -> Generator[None, None, tuple[str, bool]]:
    """Take the text of a value up to a comma or bracket; return it and whether that was found."""
    letters: list[str] = []
    quote, depth, is_escaped = "", 0, False
    while letter := (yield from intake.next_letter()):
        if quote:
            # An escaped quote does not end a text.
            quote = "" if letter == quote and not is_escaped else quote
            is_escaped = letter == "\\" and not is_escaped
        elif letter in "\"'":
            quote = letter
        elif depth == 0 and letter in ",)":
            return "".join(letters), True
        else:
            depth += (letter in "([{") - (letter in ")]}")
        letters.append(letter)
        intake.skip(1)
        intake.forget()
    return "".join(letters), False


def _json_of(text: str) -> str:
    text = text.strip()
    for form in (text, re.sub(r"\b(true|false|null)\b", lambda found: _PYTHON[found[0]], text)):
        try:
            value: Any = ast.literal_eval(form)
            return written(list(value) if isinstance(value, tuple) else value)
        except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
            continue
    return written(text)


_PYTHON: Final = {"true": "True", "false": "False", "null": "None"}
