"""Calls whose arguments stand one by one in tags: Qwen3-Coder, GLM, MiniMax M2, DeepSeek V3.2, Seed, Kimi K3."""

import ast
import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from cosine_p2p.replies.calls import MAX_NAME, Calls, written
from cosine_p2p.replies.intake import Intake, Reading
from cosine_p2p.replies.rules import Rules
from cosine_p2p.replies.schemas import Root, forms, member_forms


@dataclass(frozen=True, slots=True, kw_only=True)
class TaggedCalls:
    """`begins` name `name_ends`, then for each argument `key` its name `key_ends` value `value_ends`; then `ends`.

    `opens` and `closes` stand around one call or several. Where nothing ends a name, the first argument does. A
    quote ends names too, and what follows it may say the type of the value. Values `on_lines` have a line break
    before and after them.

    For grammars: tags are `lined`, several calls share a section `in_section`, `after_name` follows a call's name,
    and `says_kind` that of an argument: of a text, and of another value.
    """

    begins: str
    key: str
    key_ends: str
    value_ends: str
    ends: str
    name_ends: str = ""
    value_begins: str = ""
    opens: str = ""
    closes: str = ""
    on_lines: bool = False
    lined: bool = True
    in_section: bool = False
    after_name: str = ""
    says_kind: tuple[str, str] = ("", "")

    @property
    def marks(self) -> tuple[str, ...]:
        return (self.opens, self.begins) if self.opens else (self.begins,)

    @property
    def told(self) -> tuple[str, ...]:
        ends = (self.key_ends, self.value_ends, self.ends, self.name_ends, self.closes)
        return (*self.marks, self.key, self.value_begins, *ends)

    def read(self, intake: Intake, calls: Calls) -> Reading[bool]:
        begun = calls.begun
        yield from intake.takes(self.opens)
        after = intake.at
        while True:
            yield from intake.blank()
            if (yield from intake.takes(self.closes)):
                after = intake.at
                break
            if not (yield from intake.takes(self.begins)):
                break
            stops = (self.name_ends,) if self.name_ends else (self.key, self.ends)
            head, mark = yield from intake.until(stops, most=MAX_NAME)
            name = head.partition('"')[0].strip()
            if not mark or not name or any(letter in name for letter in "<>{}\n"):
                break
            if self.name_ends:
                intake.skip(len(mark))
            yield calls.begin(name)
            if not (yield from self._read_arguments(intake, calls, calls.tools.get(name))):
                after = intake.at
                break
            calls.end()
            after = intake.at
        intake.at = after
        return calls.begun > begun

    def rule(self, rules: Rules, tools: Mapping[str, Any], *, several: bool) -> str:
        """Arguments come in the order of the schema, unnamed ones at the end."""
        line = "\n" if self.lined else ""
        calls = []
        for name, schema in tools.items():
            begun, root = rules.mark(f"{self.begins}{name}{self.after_name}{self.name_ends}{line}"), Root(schema)
            for form in forms(schema, root):
                arguments = [
                    self._argument(rules, rules.mark(each), of, root) + ("" if each in form.needed else "?")
                    for each, of in form.members().items()
                ]
                arguments += [
                    f"{self._argument(rules, rules.name(each), each.schema, root)}*" for each in form.others()
                ]
                calls.append(f"{begun} {' '.join(arguments)} {rules.mark(self.ends)}")
        call = rules.one_of(calls)
        opens = rules.mark(f"{self.opens}{line}" if self.opens else "")
        closes = rules.mark(f"{line}{self.closes}" if self.closes else "")
        again = rules.mark(line)
        if self.in_section:
            return f"{opens} {call} {f'({again} {call})*' if several else ''} {closes}"
        return f"{opens} {call} {closes} {f'({again} {opens} {call} {closes})*' if several else ''}"

    def _argument(self, rules: Rules, name: str, schema: Any, root: Root) -> str:
        """An expression for an argument, in brackets; `name` is one for its name."""
        line, inner = "\n" if self.lined else "", "\n" if self.on_lines else ""
        end = f"{inner}{self.value_ends}"
        values = {True: list[str](), False: list[str]()}
        for form in forms(schema, root):
            if "string" in form.kinds and form.listed is not None:
                values[True] += [rules.mark(f"{each}{end}") for each in form.listed if isinstance(each, str)]
            elif "string" in form.kinds:
                values[True].append(rules.text_before(end, form.schemas))
            if others := form.without("string"):
                values[False].append(f"{rules.json(others, root)} {rules.mark(end)}")
        before = f"{self.key_ends}{line if self.value_begins else ''}{self.value_begins}{inner}"
        told = [
            f"{rules.mark(self.says_kind[not is_text] + before)} {rules.one_of(each)}"
            for is_text, each in values.items()
            if each
        ]
        return f"({rules.mark(self.key)} {name} {rules.one_of(told)} {rules.mark(line)})"

    def _read_arguments(self, intake: Intake, calls: Calls, schema: Any) -> Reading[bool]:
        """The arguments of a call, as an object; false where the text ends before the call."""
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
    """The JSON of a value that stands without quotes, by its possible types; else a text."""
    try:
        value: Any = json.loads(text, parse_constant=_refuse)
        written(value)
        found = text.strip()
    except (ValueError, RecursionError):
        try:
            # Some templates write lists and truth values as Python does, and models after them.
            value = ast.literal_eval(text.strip())
            found = written(value)
        except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
            return written(text)
        if not kinds and isinstance(value, int | float) and not isinstance(value, bool):
            # A number of Python's alone, such as 0x1F, where nobody asks for a number.
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
