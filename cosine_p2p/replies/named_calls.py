"""Calls as a name and then the JSON of its arguments: Mistral, DeepSeek, Kimi K2, Functionary, Solar."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from cosine_p2p.replies.calls import MAX_NAME, Calls
from cosine_p2p.replies.intake import Intake, Reading
from cosine_p2p.replies.rules import Rules

_NAME: Final = re.compile(r"[\w.\-:/]+")
_NUMBERED: Final = re.compile(r"functions\.(?P<name>.+):\d+")
"""As Kimi K2 writes it: all of it is the identity of the call, which its template wants back."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedCalls:
    """`begins` name `arguments` JSON `ends`, in a section from `opens` to `closes` where there is one.

    What stands before `names`, or from `identity` on, is not the name. `before` and `after` are regular expressions
    for what the family writes around a name.
    """

    begins: str
    arguments: str
    names: str = ""
    identity: str = ""
    ends: tuple[str, ...] = ()
    opens: str = ""
    closes: str = ""
    before: str = ""
    after: str = ""

    @property
    def marks(self) -> tuple[str, ...]:
        return (self.opens, self.begins) if self.opens else (self.begins,)

    @property
    def told(self) -> tuple[str, ...]:
        return (*self.marks, self.arguments, self.names, self.identity, *self.ends, self.closes)

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
            head, mark = yield from intake.until((self.arguments, "{", *self.ends[-1:]), most=MAX_NAME)
            name, call_id = self._named(head)
            if not mark or not name:
                break
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
        return calls.begun > begun

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
        """The name in what stands before arguments, and the call's identity; empty for none."""
        if self.names:
            head = head.rpartition(self.names)[2]
        if self.identity:
            head = head.partition(self.identity)[0]
        head = head.strip()
        if numbered := _NUMBERED.fullmatch(head):
            return numbered["name"], head
        return (head, "") if _NAME.fullmatch(head) else ("", "")
