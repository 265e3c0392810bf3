"""Calls as a name and the JSON of its arguments: Mistral, DeepSeek, Kimi K2, Functionary, Solar."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from cosine_p2p.replies.calls import MAX_NAME, Calls, SectionFormat
from cosine_p2p.replies.intake import Intake, Reading
from cosine_p2p.replies.rules import Rules

_NAME: Final = re.compile(r"[\w.\-:/]+")
_NUMBERED: Final = re.compile(r"functions\.(?P<name>.+):\d+")
"""The format of Kimi K2, whose template needs all of it as the call's id."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedCalls(SectionFormat):
    """The format `begins` name `arguments` JSON `ends`, in an optional section from `opens` to `closes`.

    Text before `names`, or from `identity` on, is not part of the name. `before` and `after` are regular
    expressions for generated text around a name.
    """

    arguments: str
    names: str = ""
    identity: str = ""
    ends: tuple[str, ...] = ()
    before: str = ""
    after: str = ""

    @property
    def told(self) -> tuple[str, ...]:
        return (*self.marks, self.arguments, self.names, self.identity, *self.ends, self.closes)

    def read_call(self, intake: Intake, calls: Calls) -> Reading[bool]:
        head, mark = yield from intake.until((self.arguments, "{", *self.ends[-1:]), most=MAX_NAME)
        name, call_id = self._named(head)
        if not mark or not name:
            return False
        yield calls.begin(name, call_id)
        if mark == self.arguments:
            intake.skip(len(mark))
        yield from calls.read_arguments(intake)
        after = intake.at
        for end in self.ends:
            yield from intake.blank()
            if (yield from intake.takes(end.strip())):
                after = intake.at
        intake.at = after
        return True

    def rule(self, rules: Rules, tools: Mapping[str, Any], *, several: bool) -> str:
        calls = []
        for name, schema in tools.items():
            before, after = (f"/{each}/" if each else "" for each in (self.before, self.after))
            between = "" if self.arguments == "{" else rules.mark(self.arguments)
            named = f"{before} {rules.mark(self.names + name)} {after}"
            calls.append(f"{rules.mark(self.begins)} {named} {between} {rules.arguments(schema)}")
        call = f"{rules.one_of(calls)} {rules.mark(''.join(self.ends))}"
        return f"{rules.mark(self.opens)} {f'({call})+' if several else call} {rules.mark(self.closes)}"

    def _named(self, head: str) -> tuple[str, str]:
        if self.names:
            head = head.rpartition(self.names)[2]
        if self.identity:
            head = head.partition(self.identity)[0]
        head = head.strip()
        if numbered := _NUMBERED.fullmatch(head):
            return numbered["name"], head
        return (head, "") if _NAME.fullmatch(head) else ("", "")
