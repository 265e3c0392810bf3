"""Calls with arguments in tags: Qwen3-Coder, GLM, MiniMax M2, DeepSeek V3.2, Seed, Kimi K3."""

import ast
import json
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from cosine_p2p.replies.calls import MAX_NAME, Calls, SectionFormat, written
from cosine_p2p.replies.intake import Intake, Reading
from cosine_p2p.replies.schemas import Root, member_forms


@dataclass(frozen=True, slots=True, kw_only=True)
class TaggedCalls(SectionFormat):
    """The format `begins` name `name_ends`, for each argument `key` name `key_ends` value `value_ends`, `ends`.

    `opens` and `closes` enclose one call or several. Without `name_ends` the first argument ends the name. A quote
    ends names too, and the text after it may state the value's type. Values `on_lines` are between line breaks.
    """

    key: str
    key_ends: str
    value_ends: str
    ends: str
    name_ends: str = ""
    value_begins: str = ""
    on_lines: bool = False

    @property
    def told(self) -> tuple[str, ...]:
        ends = (self.key_ends, self.value_ends, self.ends, self.name_ends, self.closes)
        return (*self.marks, self.key, self.value_begins, *ends)

    def read_call(self, intake: Intake, calls: Calls) -> Reading[bool]:
        stops = (self.name_ends,) if self.name_ends else (self.key, self.ends)
        head, mark = yield from intake.until(stops, most=MAX_NAME)
        name = head.partition('"')[0].strip()
        if not mark or not name or any(letter in name for letter in "<>{}\n"):
            return False
        if self.name_ends:
            intake.skip(len(mark))
        yield calls.begin(name)
        is_whole = yield from self._read_arguments(intake, calls, calls.tools.get(name))
        if is_whole:
            calls.end()
        return is_whole

    def _read_arguments(self, intake: Intake, calls: Calls, schema: Any) -> Reading[bool]:
        between, root = "{", Root(schema)
        while True:
            _, mark = yield from intake.until((self.key, self.ends), most=len(self.key) << 16)
            intake.skip(len(mark))
            if mark != self.key:
                break
            head, mark = yield from intake.until((self.key_ends,), most=MAX_NAME)
            intake.skip(len(mark))
            name, _, stated = head.partition('"')
            if not mark:
                return False
            if self.value_begins:
                yield from intake.blank()
                yield from intake.takes(self.value_begins)
            ways = member_forms(root, name.strip())
            kinds = frozenset[str]().union(*(way.kinds for way in ways))
            texts = [each for way in ways for each in way.listed or () if isinstance(each, str)]
            if '="true"' in stated or '"string"' in stated:
                kinds = frozenset(("string",))
            elif stated:
                kinds, texts = kinds - {"string"} or frozenset(("object",)), []
            yield calls.more(f"{between}{written(name.strip())}: ")
            between = ", "
            is_text = kinds == {"string"}
            reading = self._read_text(intake, calls) if is_text else self._read_value(intake, calls, kinds, texts)
            if not (yield from reading):
                return False
        if mark:
            yield calls.more("{}" if between == "{" else "}")
        return bool(mark)

    def _read_text(self, intake: Intake, calls: Calls) -> Reading[bool]:
        yield calls.more('"')
        if self.on_lines:
            yield from intake.takes("\n")
        line_break = ""
        while True:
            text, mark = intake.before((self.value_ends,))
            text = line_break + text
            line_break = "\n" if self.on_lines and text.endswith("\n") else ""
            text = text.removesuffix(line_break)
            if text:
                yield calls.more(written(text)[1:-1])
            if mark:
                intake.skip(len(mark))
                yield calls.more('"')
                return True
            if intake.is_over:
                return False
            yield None

    def _read_value(
        self, intake: Intake, calls: Calls, kinds: Collection[str], texts: Collection[str]
    ) -> Reading[bool]:
        pieces = []
        while True:
            more, mark = intake.before((self.value_ends,))
            pieces.append(more)
            if mark:
                intake.skip(len(mark))
                text = "".join(pieces)
                if self.on_lines:
                    text = text.removeprefix("\n").removesuffix("\n")
                yield calls.more(written(text) if text in texts else json_of(text, kinds))
                return True
            intake.forget()
            if intake.is_over:
                return False
            yield None


def json_of(text: str, kinds: Collection[str]) -> str:
    """Return the JSON of a value without quotes, by its possible types; otherwise it is a text."""
    try:
        value: Any = json.loads(text, parse_constant=_refuse)
        written(value)
        found = text.strip()
    except (ValueError, RecursionError):
        try:
            # Some templates, and thus models, write lists and booleans in Python's syntax.
            value = ast.literal_eval(text.strip())
            found = written(value)
        except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
            return written(text)
        if not kinds and isinstance(value, int | float) and not isinstance(value, bool):
            # A number only in Python, such as 0x1F, where no number is required.
            return written(text)
    if isinstance(value, str) or ("string" in kinds and not _is_of(value, kinds)):
        return written(text if kinds else value)
    return found


def _refuse(name: str) -> Any:
    raise ValueError(name)


def _is_of(value: Any, kinds: Collection[str]) -> bool:
    of: tuple[str, ...] = ("null",)
    match value:
        case bool():
            of = ("boolean",)
        case int():
            of = ("integer", "number")
        case float():
            of = ("number",)
        case list() | tuple():
            of = ("array",)
        case dict():
            of = ("object",)
    return not set(of).isdisjoint(kinds)
