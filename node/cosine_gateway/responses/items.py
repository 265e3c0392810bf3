"""The output of a response: converts parts of a reply to items and their events. Pure."""

from abc import ABC, abstractmethod
from base64 import b64decode, b64encode
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final

from cosine_gateway.body import Json
from cosine_gateway.responses.tools import Tool, Tools, custom_input
from cosine_p2p.replies.parts import CallArguments, CallBegun, Content, Part, Reasoning


@dataclass
class Item(ABC):
    """Item number `index` of the output; its text comes in pieces.

    `text_event` begins the names of the events of its text, `part_event` those of the only part of its content, if
    it has any, which is in the field `content`.
    """

    text_event: ClassVar[str]
    part_event: ClassVar[str] = "content_part"
    content: ClassVar[str] = "content"

    id: str
    index: int
    pieces: list[str] = field(default_factory=list)

    @property
    def text(self) -> str:
        """The text so far."""
        return "".join(self.pieces)

    @abstractmethod
    def told(self, status: str) -> Json:
        """The item's JSON with a status; while it is in progress, without its text."""

    def part(self) -> Json:
        """The part with the text so far."""
        return {}

    def begin(self) -> Iterator[Json]:
        """Yield the events that begin the item."""
        yield {"type": "response.output_item.added", "output_index": self.index, "item": self.told("in_progress")}
        if self.part_event:
            yield self._event(f"{self.part_event}.added", part=self.part())

    def add(self, delta: str) -> Iterator[Json]:
        """Add text and yield its events."""
        self.pieces.append(delta)
        yield self._event(f"{self.text_event}.delta", delta=delta)

    def end(self, status: str) -> Iterator[Json]:
        """Yield the events that end the item."""
        yield from self._close()
        if self.part_event:
            yield self._event(f"{self.part_event}.done", part=self.part())
        yield {"type": "response.output_item.done", "output_index": self.index, "item": self.told(status)}

    def _close(self) -> Iterator[Json]:
        """Yield the events that end the text."""
        yield self._event(f"{self.text_event}.done", text=self.text)

    def _event(self, kind: str, **fields: Any) -> Json:
        place = {f"{self.content}_index": 0} if self.part_event else {}
        return {"type": f"response.{kind}", "item_id": self.id, "output_index": self.index, **place, **fields}


@dataclass
class OutputMessage(Item):
    """A message of the model, with the log-probabilities of its tokens if requested."""

    text_event = "output_text"

    logprobs: list[Json] = field(default_factory=list)
    _new: list[Json] = field(default_factory=list)

    def weigh(self, logprobs: Sequence[Json]) -> None:
        """Take the log-probabilities of the next text."""
        self._new += logprobs
        self.logprobs += logprobs

    def told(self, status: str) -> Json:
        content = [] if status == "in_progress" else [self.part()]
        return {"id": self.id, "type": "message", "role": "assistant", "status": status, "content": content}

    def part(self) -> Json:
        return {"type": "output_text", "text": self.text, "annotations": [], "logprobs": list(self.logprobs)}

    def add(self, delta: str) -> Iterator[Json]:
        for event in super().add(delta):
            yield event | {"logprobs": self._new}
        self._new = []

    def _close(self) -> Iterator[Json]:
        for event in super()._close():
            yield event | {"logprobs": self.logprobs}


@dataclass
class OpenReasoning(Item):
    """Reasoning of the model; with `is_kept`, also in the one field that some clients send back."""

    text_event = "reasoning_text"
    part_type: ClassVar[str] = "reasoning_text"

    is_kept: bool = False

    def told(self, status: str) -> Json:
        item = {"id": self.id, "type": "reasoning", "status": status}
        if status == "in_progress":
            return item | {"summary": [], self.content: []}
        if self.is_kept:
            item["encrypted_content"] = kept(self.text)
        return item | {"summary": [], self.content: [self.part()]}

    def part(self) -> Json:
        return {"type": self.part_type, "text": self.text}


class SummarizedReasoning(OpenReasoning):
    """The whole reasoning in the field of its summary, for clients that read only that."""

    text_event = "reasoning_summary_text"
    part_event = "reasoning_summary_part"
    part_type = "summary_text"
    content = "summary"


@dataclass
class Call(Item):
    """A call of a function."""

    text_event = "function_call_arguments"
    part_event = ""

    call_id: str = ""
    tool: Tool = field(default_factory=lambda: Tool(""))

    def told(self, status: str) -> Json:
        return self._call("function_call", status) | {"arguments": self.text}

    def _close(self) -> Iterator[Json]:
        yield self._event(f"{self.text_event}.done", name=self.tool.name, arguments=self.text)

    def _call(self, kind: str, status: str) -> Json:
        namespace = {"namespace": self.tool.namespace} if self.tool.namespace is not None else {}
        fields = {"id": self.id, "type": kind, "status": status, "call_id": self.call_id, "name": self.tool.name}
        return fields | namespace


class CustomCall(Call):
    """A call of a custom tool; its input, a string within JSON, is sent once it is complete."""

    text_event = "custom_tool_call_input"

    def told(self, status: str) -> Json:
        said = "" if status == "in_progress" else custom_input(self.text)
        return self._call("custom_tool_call", status) | {"input": said}

    def add(self, delta: str) -> Iterator[Json]:
        self.pieces.append(delta)
        yield from ()

    def _close(self) -> Iterator[Json]:
        said = custom_input(self.text)
        yield self._event(f"{self.text_event}.delta", delta=said)
        yield self._event(f"{self.text_event}.done", input=said)


class OutputItems:
    """Converts parts to items."""

    def __init__(
        self, response_id: str, tools: Tools, *, is_summarized: bool = False, is_kept: bool = False
    ) -> None:
        self._response_id = response_id
        self._tools = tools
        self._reasoning = SummarizedReasoning if is_summarized else OpenReasoning
        self._is_kept = is_kept
        self._open: Item | None = None
        self._logprobs: list[Json] = []
        self.output: list[Json] = []

    def add(self, part: Part, logprobs: list[Json]) -> Iterator[Json]:
        """Yield the events of one more part; its log-probabilities are dropped unless it belongs to a message."""
        logprobs, self._logprobs = self._logprobs + logprobs, []
        match part:
            case Content(""):
                # The text of these tokens is withheld until later.
                self._logprobs = logprobs
                return
            case Content(text):
                yield from self._go_on(OutputMessage, "msg")
                assert isinstance(self._open, OutputMessage)
                self._open.weigh(logprobs)
            case Reasoning(text):
                yield from self._go_on(self._reasoning, "rs", is_kept=self._is_kept)
            case CallArguments(_, text):
                assert isinstance(self._open, Call)
            case CallBegun(_, call_id, name):
                # The model may call a tool that does not exist.
                tool = self._tools.by_name.get(name, Tool(name))
                kind, prefix = (CustomCall, "ctc") if tool.is_custom else (Call, "fc")
                item_id, index = self._next(prefix)
                yield from self._begin(kind(item_id, index, call_id=call_id, tool=tool))
                return
        assert self._open is not None
        yield from self._open.add(text)

    def end(self, status: str) -> Iterator[Json]:
        """Yield the events that end the output, which has at least one item; `status` is that of the last."""
        if self._open is None:
            yield from self._go_on(OutputMessage, "msg")
        yield from self._end(status)

    def _go_on(self, kind: type[Item], prefix: str, **fields: Any) -> Iterator[Json]:
        if type(self._open) is not kind:
            item_id, index = self._next(prefix)
            yield from self._begin(kind(item_id, index, **fields))

    def _next(self, prefix: str) -> tuple[str, int]:
        index = len(self.output) + (self._open is not None)
        return f"{prefix}_{self._response_id}_{index}", index

    def _begin(self, item: Item) -> Iterator[Json]:
        yield from self._end("completed")
        self._open = item
        yield from item.begin()

    def _end(self, status: str) -> Iterator[Json]:
        if self._open is not None:
            yield from self._open.end(status)
            self.output.append(self._open.told(status))
            self._open = None


_OURS: Final = "cosine:"
"""The beginning of reasoning that this gateway encoded; it is not encrypted."""


def kept(text: str) -> str:
    """Encode a text."""
    return _OURS + b64encode(text.encode()).decode()


def kept_text(field: str) -> str | None:
    """Decode a field; return None if another server wrote it."""
    if not field.startswith(_OURS):
        return None
    try:
        return b64decode(field.removeprefix(_OURS), validate=True).decode()
    except ValueError:
        return None
