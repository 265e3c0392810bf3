"""The parts of a reply, streamed and as a whole."""

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Content:
    """Further content for the user."""

    text: str


@dataclass(frozen=True, slots=True)
class Reasoning:
    """Further reasoning before the answer."""

    text: str


@dataclass(frozen=True, slots=True)
class CallBegun:
    """The begin of a tool call; `index` counts the calls of a reply, and results refer to `call_id`."""

    index: int
    call_id: str
    name: str


@dataclass(frozen=True, slots=True)
class CallArguments:
    """Further JSON of a call's arguments."""

    index: int
    text: str


Part = Content | Reasoning | CallBegun | CallArguments


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A whole call; `arguments` is JSON as generated, usually an object."""

    call_id: str
    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class Reply:
    """All parts of a reply."""

    content: str = ""
    reasoning: str = ""
    tool_calls: tuple[ToolCall, ...] = ()

    @classmethod
    def of(cls, parts: Iterable[Part]) -> "Reply":
        content, reasoning = [], []
        begun: dict[int, CallBegun] = {}
        arguments: dict[int, list[str]] = {}
        for part in parts:
            match part:
                case Content(text):
                    content.append(text)
                case Reasoning(text):
                    reasoning.append(text)
                case CallBegun(index):
                    begun[index] = part
                case CallArguments(index, text):
                    arguments.setdefault(index, []).append(text)
        calls = (ToolCall(each.call_id, each.name, "".join(arguments.get(at, ()))) for at, each in begun.items())
        return cls("".join(content), "".join(reasoning), tuple(calls))
