"""Calls of Gemma 4 and FunctionGemma: `call:name{key:value}`, with marks as quotes of values."""

import json
import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

from cosine_p2p.replies.calls import MAX_NAME, Calls, written
from cosine_p2p.replies.intake import Intake, Reading

_NAME: Final = re.compile(r"[\w.\-:/]+")
_ATOM: Final = re.compile(r"[^,\[\]{}:]+")


@dataclass(frozen=True, slots=True, kw_only=True)
class GemmaCalls:
    """The format `begins` name, arguments in braces, `ends`, with `quote` around texts."""

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
        """Read a call; its arguments are yielded once they are complete."""
        yield from intake.takes(self.begins)
        name, found = yield from intake.until(("{", self.ends), most=MAX_NAME)
        if not found or not _NAME.fullmatch(name.strip()):
            return False
        yield calls.begin(name.strip())
        pieces = []
        while True:
            more, mark = intake.before((self.ends,))
            pieces.append(more)
            intake.skip(len(mark))
            intake.forget()
            if mark or intake.is_over:
                break
            yield None
        text = "".join(pieces)
        try:
            value = _value(_tokens(text, self.quote))
            arguments = written(value) if isinstance(value, dict) else text
        except (ValueError, StopIteration, RuntimeError):
            # As generated if it is no object.
            arguments = text
        yield calls.more(arguments)
        if mark:
            calls.end()
        return True


def _tokens(text: str, quote: str) -> Iterator[str]:
    """Yield brackets, commas, colons, texts with a leading quote, and other values."""
    for index, part in enumerate(text.split(quote)):
        if index % 2:
            yield '"' + part
        else:
            for found in re.finditer(r"[,\[\]{}:]|[^,\[\]{}:]+", part):
                if found[0].strip():
                    yield found[0].strip()


def _value(tokens: Iterator[str], first: str = "") -> Any:
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
    if token in _WORDS:
        return _WORDS[token]
    with suppress(ValueError):
        # Numbers of Python that JSON does not have, such as 007 or nan, are texts.
        number = json.loads(token)
        written(number)
        return number
    if not _ATOM.fullmatch(token):
        raise ValueError(token)
    return token


_WORDS: Final = {"true": True, "false": False, "null": None, "None": None}
