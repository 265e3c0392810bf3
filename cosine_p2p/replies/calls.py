"""The tool calls of one reply. Pure."""

import json
import string
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, Final, Protocol, runtime_checkable

from cosine_p2p.replies.intake import Intake, Reading, told
from cosine_p2p.replies.parts import CallArguments, CallBegun
from cosine_p2p.replies.rules import Rules

MAX_NAME: Final = 256  # Characters; OpenAI's API allows 64 for names, and some formats add text to them.
ID_LETTERS: Final = 9
_ALPHABET: Final = string.ascii_letters + string.digits


class CallFormat(Protocol):
    """A family's format of calls, which begin with `marks`; `told` are all its texts with special tokens."""

    @property
    def marks(self) -> Sequence[str]: ...

    @property
    def told(self) -> Sequence[str]: ...

    def read(self, intake: Intake, calls: "Calls") -> Reading[bool]:
        """Read the calls that begin here; return false if there is none and the text is content."""


@runtime_checkable
class ForcibleFormat(CallFormat, Protocol):
    """A format in which a grammar can force calls: arguments are JSON."""

    def rule(self, rules: Rules, tools: Mapping[str, Any], *, several: bool) -> str:
        """Return a grammar expression for one call of these tools, or for one or more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SectionFormat(ABC):
    """A format in which each call begins with `begins`, in an optional section from `opens` to `closes`."""

    begins: str
    opens: str = ""
    closes: str = ""

    @property
    def marks(self) -> tuple[str, ...]:
        return (self.opens, self.begins) if self.opens else (self.begins,)

    def read(self, intake: Intake, calls: "Calls") -> Reading[bool]:
        begun = calls.begun
        yield from intake.takes(self.opens)
        after = intake.at
        is_whole = True
        while is_whole:
            yield from intake.blank()
            if (yield from intake.takes(self.closes)):
                after = intake.at
                break
            if not (yield from intake.takes(self.begins)):
                break
            before = calls.begun
            is_whole = yield from self.read_call(intake, calls)
            if calls.begun > before:
                after = intake.at
        intake.at = after
        return calls.begun > begun

    @abstractmethod
    def read_call(self, intake: Intake, calls: "Calls") -> Reading[bool]:
        """Read one call after `begins`; return false if it is none or incomplete."""


class Calls:
    """The calls so far. `call_id` returns the id of a call by index; `tools` are schemas of arguments by name."""

    def __init__(self, tools: Mapping[str, Any], call_id: Callable[[int], str]) -> None:
        self.tools = tools
        self._call_id = call_id
        self.begun = 0
        self.ended = 0

    def begin(self, name: str, call_id: str = "") -> CallBegun:
        """Begin a call, with the model's own id if it has one."""
        self.begun += 1
        index = self.begun - 1
        return CallBegun(index, call_id or self._call_id(index), name)

    def more(self, text: str) -> CallArguments:
        return CallArguments(self.begun - 1, text)

    def end(self) -> None:
        self.ended = self.begun

    def read_arguments(self, intake: Intake) -> Reading[None]:
        """Read a call's arguments as JSON, by default an empty object, and end the call."""
        yield from intake.blank()
        if (yield from intake.next_letter()) in ("{", "["):
            yield from told(intake.json_value(), self.more)
        else:
            yield self.more("{}")
        self.end()


def call_id(key: bytes, index: int) -> str:
    """Return the id of a call of a key's reply: 53 bits as nine letters and digits, the format of Mistral."""
    number = int.from_bytes(blake2b(key + index.to_bytes(8), digest_size=8).digest())
    letters = []
    for _ in range(ID_LETTERS):
        number, at = divmod(number, len(_ALPHABET))
        letters.append(_ALPHABET[at])
    return "".join(letters)


def written(value: Any) -> str:
    """Return a value as JSON. Raises `ValueError` for non-finite numbers."""
    return json.dumps(value, ensure_ascii=False, allow_nan=False)
