"""Calls as JSON objects with a name and arguments: Hermes, Qwen, Llama 3, Granite, Command R and others."""

import json
from collections.abc import Generator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from cosine_p2p.replies.calls import Calls
from cosine_p2p.replies.intake import Intake, Reading, told
from cosine_p2p.replies.rules import Rules

NAMES: Final = ("name", "tool_name")
ARGUMENTS: Final = ("arguments", "parameters", "args")
BESIDE: Final = ("id", "tool_call_id", "type")  # Further keys allowed in a call without a mark.


@dataclass(frozen=True, slots=True, kw_only=True)
class JsonCalls:
    """The format of one or several objects, in a list or consecutive, between marks.

    A call without a mark must name a known tool. `is_named_by_key`: the function's name is the only key. `name` and
    `arguments` are the family's keys; all calls are in one list if `in_list`, with `around` inside the marks.
    """

    begins: tuple[str, ...]
    ends: tuple[str, ...] = ()
    is_named_by_key: bool = False
    name: str = "name"
    arguments: str = "arguments"
    in_list: bool = False
    around: str = ""

    @property
    def marks(self) -> tuple[str, ...]:
        return self.begins

    @property
    def told(self) -> tuple[str, ...]:
        return (*self.begins, *self.ends)

    def read(self, intake: Intake, calls: Calls) -> Reading[bool]:
        begun = calls.begun
        mark = yield from intake.taken_of(self.begins)
        is_bare = mark in ("{", "[")
        if is_bare:
            intake.skip(-1)
        after = intake.at
        while True:
            yield from intake.blank()
            if (yield from intake.taken_of(self.ends)):
                after = intake.at
                break
            letter = yield from intake.next_letter()
            if letter == "{":
                is_call = yield from self._read_object(intake, calls, is_bare=is_bare)
                if not is_call:
                    break
                after = intake.at
            elif letter in ("[", "]", ",", ";"):
                intake.skip(1)
                if letter == "]" and calls.begun > begun:
                    after = intake.at
            else:
                break
        intake.at = after
        return calls.begun > begun

    def rule(self, rules: Rules, tools: Mapping[str, Any], *, several: bool) -> str:
        call = rules.one_of([self._call(rules, name, schema) for name, schema in tools.items()])
        is_bare = self.begins[0] in ("{", "[")
        begin = rules.mark(("" if is_bare else self.begins[0]) + self.around + ("[" if self.in_list else ""))
        end = rules.mark(("]" if self.in_list else "") + self.around + (self.ends[0] if self.ends else ""))
        if self.in_list:
            more = f"({rules.mark(', ')} {call})*" if several else ""
            return f"{begin} {call} {more} {end}"
        one = f"{begin} {call} {end}"
        # Without an end mark another call could not be distinguished from content.
        return f"{one} ({rules.mark(self.around)} {one})*" if several and self.ends else one

    def _call(self, rules: Rules, name: str, schema: Any) -> str:
        arguments = rules.arguments(schema)
        if self.is_named_by_key:
            return f"{rules.mark(f'{{{json.dumps(name)}: ')} {arguments} {rules.mark('}')}"
        head = f'{{"{self.name}": {json.dumps(name)}, "{self.arguments}": '
        return f"{rules.mark(head)} {arguments} {rules.mark('}')}"

    def _read_object(self, intake: Intake, calls: Calls, *, is_bare: bool) -> Reading[bool]:
        intake.skip(1)
        entries = _Entries()
        while True:
            yield from intake.blank()
            if (yield from intake.takes(",")):
                continue
            if (yield from intake.takes("}")):
                break
            key = yield from _key(intake)
            if key is None:
                break
            if self.is_named_by_key and not entries.name:
                entries.name = key
                yield calls.begin(key)
                entries.has_arguments = yield from _read_arguments(intake, calls)
            elif not (yield from self._read_entry(intake, calls, key, entries, is_bare=is_bare)):
                return False
        if not entries.name:
            return False
        if not entries.has_arguments:
            yield calls.more("{}")
        calls.end()
        return True

    def _read_entry(
        self, intake: Intake, calls: Calls, key: str, entries: "_Entries", *, is_bare: bool
    ) -> Reading[bool]:
        if key in NAMES and not entries.name:
            name = yield from intake.json_string()
            if not name or (is_bare and name not in calls.tools):
                return False
            entries.name = name
            yield calls.begin(name)
            if entries.early:
                yield calls.more(entries.early)
            return True
        if key in ARGUMENTS and not entries.has_arguments and entries.name:
            entries.has_arguments = yield from _read_arguments(intake, calls)
            return True
        text, is_whole = yield from intake.json_text()
        if key in ARGUMENTS and not entries.has_arguments:
            entries.early, entries.has_arguments = _arguments(text), True
            return is_whole
        return bool(entries.name) or (is_whole and (not is_bare or key in BESIDE))


@dataclass(slots=True)
class _Entries:
    """The entries of an object so far; `early` are arguments before the name."""

    name: str = ""
    has_arguments: bool = False
    early: str = ""


def _key(intake: Intake) -> Generator[None, None, str | None]:
    key = yield from intake.json_string()
    yield from intake.blank()
    if key is None or not (yield from intake.takes(":")):
        return None
    yield from intake.blank()
    return key


def _read_arguments(intake: Intake, calls: Calls) -> Reading[bool]:
    letter = yield from intake.next_letter()
    if letter in ("{", "["):
        yield from told(intake.json_value(), calls.more)
        return True
    text, _ = yield from intake.json_text()
    if text:
        yield calls.more(_arguments(text))
    return bool(text)


def _arguments(text: str) -> str:
    """Return the object of arguments that are a JSON string or null."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return text
    if isinstance(value, str):
        return value
    return "{}" if value is None else text
