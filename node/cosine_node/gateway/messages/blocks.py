"""The content of a message: converts parts of a reply to blocks and their events. Pure."""

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final

from cosine_p2p.replies.parts import CallArguments, CallBegun, Content, Part, Reasoning

Json = dict[str, Any]

_DELTAS: Final = {
    "text": ("text_delta", "text"),
    "thinking": ("thinking_delta", "thinking"),
    "tool_use": ("input_json_delta", "partial_json"),
}
"""The type and field of the deltas of each kind of block."""


@dataclass
class Block:
    """A block that grows; `begun` is its initial state."""

    index: int
    begun: Json
    pieces: list[str] = field(default_factory=list)

    @property
    def kind(self) -> str:
        return str(self.begun["type"])

    def whole(self) -> Json:
        """The complete block."""
        said = "".join(self.pieces)
        match self.kind:
            case "tool_use":
                return self.begun | {"input": call_input(said)}
            case kind:
                return self.begun | {kind: said}


class Blocks:
    """Converts parts to blocks.

    Blocks of thinking have a `signature`, without which clients do not send them back. Thinking that is not shown
    is a block without text.
    """

    def __init__(self, *, signature: str, shows_thinking: bool = True) -> None:
        self._signature = signature
        self._shows_thinking = shows_thinking
        self._open: Block | None = None
        self.content: list[Json] = []
        self.has_calls = False

    def add(self, part: Part) -> Iterator[Json]:
        """Yield the events of one more part."""
        match part:
            case Content(said):
                yield from self._go_on({"type": "text", "text": ""})
            case Reasoning(said):
                yield from self._go_on({"type": "thinking", "thinking": "", "signature": self._signature})
                if not self._shows_thinking:
                    return
            case CallBegun(_, call_id, name):
                self.has_calls = True
                yield from self._begin({"type": "tool_use", "id": call_id, "name": name, "input": {}})
                return
            case CallArguments(_, said):
                pass
        assert self._open is not None
        self._open.pieces.append(said)
        kind, name = _DELTAS[self._open.kind]
        yield self._event("delta", delta={"type": kind, name: said})

    def end(self) -> Iterator[Json]:
        """Yield the events that end the content."""
        if self._open is not None:
            if self._open.kind == "thinking":
                yield self._event("delta", delta={"type": "signature_delta", "signature": self._signature})
            yield self._event("stop")
            self.content.append(self._open.whole())
            self._open = None

    def _go_on(self, begun: Json) -> Iterator[Json]:
        if self._open is None or self._open.kind != begun["type"]:
            yield from self._begin(begun)

    def _begin(self, begun: Json) -> Iterator[Json]:
        yield from self.end()
        self._open = Block(len(self.content), begun)
        # Clients append the signature's delta to this one.
        told = begun | ({"signature": ""} if "signature" in begun else {})
        yield self._event("start", content_block=told)

    def _event(self, kind: str, **fields: Any) -> Json:
        assert self._open is not None
        return {"type": f"content_block_{kind}", "index": self._open.index, **fields}


def call_input(arguments: str) -> Json:
    """Parse the arguments of a call; anything but an object is wrapped as `input`."""
    try:
        found = json.loads(arguments or "{}")
    except (ValueError, RecursionError):
        found = arguments
    return found if isinstance(found, dict) else {"input": found}
