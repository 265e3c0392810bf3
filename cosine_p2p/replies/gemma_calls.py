"""Calls of Gemma 4 and FunctionGemma: `call:name{key:value}`, with marks as quotes of values."""

import json
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

from cosine_p2p.replies.calls import MAX_NAME, Calls, written
from cosine_p2p.replies.intake import Intake, Reading
from cosine_p2p.replies.rules import Rules, TooManyRules
from cosine_p2p.replies.schemas import Form, Root, forms, joined

_NAME: Final = re.compile(r"[\w.\-:/]+")
MAX_DEPTH: Final = 16
MAX_ITEMS: Final = 64  # Bounds of generated rules: depth of schemas, minimum number of items.
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

    def rule(self, rules: Rules, tools: Mapping[str, Any], *, several: bool) -> str:
        calls = []
        for name, schema in tools.items():
            root = Root(schema)
            arguments = [self._object(rules, form, root, MAX_DEPTH) for form in forms(schema, root)]
            calls.append(f"{rules.mark(f'{self.begins}{name}')} {rules.one_of(arguments)}")
        call = f"{rules.one_of(calls)} {rules.mark(self.ends)}"
        return f"({call})+" if several else call

    def _value(self, rules: Rules, schema: Any, root: Root, depth: int) -> str:
        if not depth:
            raise TooManyRules
        return rules.once(schema, root, lambda: self._ways(rules, schema, root, depth))

    def _ways(self, rules: Rules, schema: Any, root: Root, depth: int) -> str:
        ways: list[str] = []
        for form in forms(schema, root):
            if form.listed is not None:
                ways += [rules.mark(self._written(each)) for each in form.listed]
                continue
            if "string" in form.kinds:
                ways.append(f"{rules.mark(self.quote)} {rules.text_before(self.quote, form.schemas)}")
            if "array" in form.kinds:
                ways.append(self._array(rules, form, root, depth))
            if "object" in form.kinds:
                ways.append(self._object(rules, form, root, depth))
            if scalars := sorted(form.kinds - {"string", "array", "object"} if form.kinds else {"number"}):
                ways.append(rules.json(joined([*form.schemas, {"type": scalars}]), root))
        return rules.one_of(ways)

    def _array(self, rules: Rules, form: Form, root: Root, depth: int) -> str:
        item = self._value(
            rules, joined([each["items"] for each in form.schemas if "items" in each]), root, depth - 1
        )
        least = max((each.get("minItems", 0) for each in form.schemas), default=0)
        most = min((each["maxItems"] for each in form.schemas if "maxItems" in each), default=None)
        if not isinstance(least, int) or least > MAX_ITEMS:
            raise TooManyRules
        if most is not None and (not isinstance(most, int) or most < least):
            raise TooManyRules
        further = f"({rules.mark(',')} {item})"
        if most is None:
            further += f"{{{least - 1},}}" if least > 1 else "*"
        elif most > 1:
            further += f"{{{max(least, 1) - 1},{most - 1}}}"
        else:
            further = ""
        items = "" if most == 0 else f"{item} {further}" if least > 0 else f"({item} {further})?"
        return f"{rules.mark('[')} {items} {rules.mark(']')}"

    def _object(self, rules: Rules, form: Form, root: Root, depth: int) -> str:
        values = {
            name: f"{rules.mark(f'{name}:')} {self._value(rules, of, root, depth - 1)}"
            for name, of in form.members().items()
        }
        others = [
            f"{rules.name(each)} {rules.mark(':')} {self._value(rules, each.schema, root, depth - 1)}"
            for each in form.others()
        ]
        return f"{rules.mark('{')} {rules.fields(values, form.needed, others, ',')} {rules.mark('}')}"

    def _written(self, value: Any) -> str:
        return f"{self.quote}{value}{self.quote}" if isinstance(value, str) else written(value)


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
