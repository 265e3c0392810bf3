"""Calls of Gemma 4 and FunctionGemma: `call:name{key:value}`, with marks for quotes and keys without any."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from cosine_p2p.replies.calls import MAX_NAME, Calls, written
from cosine_p2p.replies.intake import Intake, Reading

_NAME: Final = re.compile(r"[\w.\-:/]+")
_ATOM: Final = re.compile(r"[^,\[\]{}:]+")


@dataclass(frozen=True, slots=True, kw_only=True)
class GemmaCalls:
    """`begins` name, the arguments between braces, `ends`; `quote` stands before and after a text."""

    begins: str
    ends: str
    quote: str

    @property
    def marks(self) -> tuple[str, ...]:
        return (self.begins,)

    @property
    def told(self) -> tuple[str, ...]:
        return (self.begins, self.ends, self.quote)

    def read(self, intake: Intake, calls: Calls) -> Reading[bool]:
        """As `CallFormat.read`; the arguments come once all of them are there."""
        yield from intake.takes(self.begins)
        name, found = yield from intake.until(("{", self.ends), most=MAX_NAME)
        if not found or not _NAME.fullmatch(name.strip()):
            return False
        yield calls.begin(name.strip())
        text = ""
        while True:
            more, mark = intake.before((self.ends,))
            text += more
            if mark:
                intake.skip(len(mark))
                break
            if intake.is_over:
                break
            yield None
        try:
            value = _value(_tokens(text, self.quote))
        except (ValueError, StopIteration, RuntimeError):
            value = None
        if isinstance(value, dict):
            yield calls.more(written(value))
        else:
            # As the model wrote it, where that is no object.
            yield calls.more(text)
        if mark:
            calls.end()
        return True


def _tokens(text: str, quote: str) -> Iterator[str]:
    """Brackets, commas and colons; texts with a quote before them; and what else stands there."""
    for index, part in enumerate(text.split(quote)):
        if index % 2:
            yield '"' + part
        else:
            for found in re.finditer(r"[,\[\]{}:]|[^,\[\]{}:]+", part):
                if found[0].strip():
                    yield found[0].strip()


def _value(tokens: Iterator[str], first: str = "") -> Any:
    """The value that begins here. Raises `ValueError` or `StopIteration`."""
    token = first or next(tokens)
    match token:
        case "[":
            return [_value(tokens, each) for each in iter(lambda: next(tokens), "]") if each != ","]
        case "{":
            keys = (each for each in iter(lambda: next(tokens), "}") if each != ",")
            return {key.removeprefix('"'): _value_after_colon(tokens) for key in keys}
    return token[1:] if token.startswith('"') else _atom(token)


def _value_after_colon(tokens: Iterator[str]) -> Any:
    if next(tokens) != ":":
        raise ValueError
    return _value(tokens)


def _atom(token: str) -> Any:
    """A number, a truth value, nothing, or a text without quotes."""
    if token in _WORDS:
        return _WORDS[token]
    for number in (int, float):
        try:
            return number(token)
        except ValueError:
            continue
    if not _ATOM.fullmatch(token):
        raise ValueError(token)
    return token


_WORDS: Final = {"true": True, "false": False, "null": None, "None": None}
