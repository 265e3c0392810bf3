"""Calls of Gemma 4 and FunctionGemma: `call:name{key:value}`, with marks for quotes and keys without any."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from cosine_p2p.replies.calls import MAX_NAME, Calls, kinds_of, parameters_of, resolved, written
from cosine_p2p.replies.intake import Intake, Reading
from cosine_p2p.replies.rules import Rules, TooManyRules

_NAME: Final = re.compile(r"[\w.\-:/]+")
MAX_DEPTH: Final = 16
MAX_ITEMS: Final = 64
"""Bounds of what is written by rules of one's own: the depth of schemas, and the fewest items of a list."""
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

    def rule(self, rules: Rules, tools: Mapping[str, Any], *, several: bool) -> str:
        """As `CallFormat.rule`."""
        calls = []
        for name, schema in tools.items():
            arguments = self._value(rules, {**(schema or {}), "type": "object"}, schema)
            calls.append(f"{rules.mark(f'{self.begins}{name}')} {arguments}")
        call = f"{rules.one_of(calls)} {rules.mark(self.ends)}"
        return f"({call})+" if several else call

    def _value(self, rules: Rules, schema: Any, within: Any, *, depth: int = MAX_DEPTH) -> str:
        """An expression for a value by a schema. Raises `TooManyRules`."""
        if not depth:
            raise TooManyRules
        own = resolved(schema, within)
        kinds = kinds_of(own, within)
        comma = rules.mark(",")
        if "enum" in own:
            return rules.one_of([rules.mark(self._written(each)) for each in own["enum"]])
        if "string" in kinds:
            return f"{rules.mark(self.quote)} {rules.text_before(self.quote, schema=own)}"
        if "array" in kinds:
            item = self._value(rules, own.get("items"), within, depth=depth - 1)
            fewest = own.get("minItems", 0)
            if not isinstance(fewest, int) or fewest > MAX_ITEMS:
                raise TooManyRules
            items = f"{item} ({comma} {item})*" if fewest < 2 else f" {comma} ".join([item] * fewest)
            return f"{rules.mark('[')} {items if fewest else f'({items})?'} {rules.mark(']')}"
        if "object" in kinds:
            properties, needed = parameters_of(own)
            values = {
                name: f"{rules.mark(f'{name}:')} {self._value(rules, of, within, depth=depth - 1)}"
                for name, of in properties.items()
            }
            return f"{rules.mark('{')} {rules.fields(values, needed, ',')} {rules.mark('}')}"
        return rules.json({"type": "number"} if not kinds else own, within)

    def _written(self, value: Any) -> str:
        return f"{self.quote}{value}{self.quote}" if isinstance(value, str) else written(value)


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
