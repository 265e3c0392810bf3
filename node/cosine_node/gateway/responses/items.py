"""The output of a response as it grows: parts of a reply become items, and events that tell of them. Pure."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from cosine_node.gateway.responses.kept_reasoning import kept
from cosine_node.gateway.responses.tools import Tool, Tools, custom_input
from cosine_p2p.replies.parts import CallArguments, CallBegun, Content, Part, Reasoning

Json = dict[str, Any]


@dataclass
class Item(ABC):
    """One item of the output, `index` among all; its text comes in pieces."""

    id: str
    index: int
    pieces: list[str] = field(default_factory=list)

    @property
    def text(self) -> str:
        """All text so far."""
        return "".join(self.pieces)

    @abstractmethod
    def told(self, status: str) -> Json:
        """The item with the text that it has when it has this status; one in progress has none yet."""

    @abstractmethod
    def opened(self) -> Iterator[Json]:
        """Events after that which adds the item."""

    @abstractmethod
    def grown(self, delta: str) -> Iterator[Json]:
        """Events of more text."""

    @abstractmethod
    def closed(self) -> Iterator[Json]:
        """Events before that which ends the item."""

    def begin(self) -> Iterator[Json]:
        """The events that begin the item."""
        yield {"type": "response.output_item.added", "output_index": self.index, "item": self.told("in_progress")}
        yield from self.opened()

    def add(self, delta: str) -> Iterator[Json]:
        """The events of more text."""
        self.pieces.append(delta)
        yield from self.grown(delta)

    def end(self, status: str) -> Iterator[Json]:
        """The events that end the item."""
        yield from self.closed()
        yield {"type": "response.output_item.done", "output_index": self.index, "item": self.told(status)}

    def _event(self, kind: str, **fields: Any) -> Json:
        return {"type": f"response.{kind}", "item_id": self.id, "output_index": self.index, **fields}


@dataclass
class Message(Item):
    """What the model says, with the log-probabilities of its tokens where they are asked for."""

    logprobs: list[Json] = field(default_factory=list)
    _new: list[Json] = field(default_factory=list)

    def weigh(self, logprobs: Sequence[Json]) -> None:
        """Take the log-probabilities of tokens, to be told with more text."""
        self._new += logprobs
        self.logprobs += logprobs

    def told(self, status: str) -> Json:
        content = [] if status == "in_progress" else [_output_text(self.text, self.logprobs)]
        return {"id": self.id, "type": "message", "role": "assistant", "status": status, "content": content}

    def opened(self) -> Iterator[Json]:
        yield self._event("content_part.added", content_index=0, part=_output_text(""))

    def grown(self, delta: str) -> Iterator[Json]:
        logprobs, self._new = self._new, []
        yield self._event("output_text.delta", content_index=0, delta=delta, logprobs=logprobs)

    def closed(self) -> Iterator[Json]:
        yield self._event("output_text.done", content_index=0, text=self.text, logprobs=self.logprobs)
        yield self._event("content_part.done", content_index=0, part=_output_text(self.text, self.logprobs))


@dataclass
class OpenReasoning(Item):
    """What the model thinks, as it is; if it `is_kept` once more, for clients that send back nothing else."""

    is_kept: bool = False

    def told(self, status: str) -> Json:
        content = [] if status == "in_progress" else [_reasoning_text(self.text)]
        return self._reasoning(status) | {"summary": [], "content": content}

    def opened(self) -> Iterator[Json]:
        yield self._event("content_part.added", content_index=0, part=_reasoning_text(""))

    def grown(self, delta: str) -> Iterator[Json]:
        yield self._event("reasoning_text.delta", content_index=0, delta=delta)

    def closed(self) -> Iterator[Json]:
        yield self._event("reasoning_text.done", content_index=0, text=self.text)
        yield self._event("content_part.done", content_index=0, part=_reasoning_text(self.text))

    def _reasoning(self, status: str) -> Json:
        is_ended = self.is_kept and status != "in_progress"
        field = {"encrypted_content": kept(self.text)} if is_ended else {}
        return {"id": self.id, "type": "reasoning", "status": status, **field}


class SummarizedReasoning(OpenReasoning):
    """What the model thinks, whole, in the place of its summary: who asks for that reads nothing else."""

    def told(self, status: str) -> Json:
        summary = [] if status == "in_progress" else [_summary_text(self.text)]
        return self._reasoning(status) | {"summary": summary}

    def opened(self) -> Iterator[Json]:
        yield self._event("reasoning_summary_part.added", summary_index=0, part=_summary_text(""))

    def grown(self, delta: str) -> Iterator[Json]:
        yield self._event("reasoning_summary_text.delta", summary_index=0, delta=delta)

    def closed(self) -> Iterator[Json]:
        yield self._event("reasoning_summary_text.done", summary_index=0, text=self.text)
        yield self._event("reasoning_summary_part.done", summary_index=0, part=_summary_text(self.text))


@dataclass
class Call(Item):
    """A call of a function."""

    call_id: str = ""
    tool: Tool = field(default_factory=lambda: Tool(""))

    def told(self, status: str) -> Json:
        return self._call("function_call", status) | {"arguments": self.text}

    def opened(self) -> Iterator[Json]:
        yield from ()

    def grown(self, delta: str) -> Iterator[Json]:
        yield self._event("function_call_arguments.delta", delta=delta)

    def closed(self) -> Iterator[Json]:
        yield self._event("function_call_arguments.done", name=self.tool.name, arguments=self.text)

    def _call(self, kind: str, status: str) -> Json:
        namespace = {"namespace": self.tool.namespace} if self.tool.namespace is not None else {}
        fields = {"id": self.id, "type": kind, "status": status, "call_id": self.call_id, "name": self.tool.name}
        return fields | namespace


class CustomCall(Call):
    """A call of a custom tool, whose input is told once it is whole: it is a string within JSON."""

    def told(self, status: str) -> Json:
        said = "" if status == "in_progress" else custom_input(self.text)
        return self._call("custom_tool_call", status) | {"input": said}

    def grown(self, delta: str) -> Iterator[Json]:
        yield from ()

    def closed(self) -> Iterator[Json]:
        said = custom_input(self.text)
        yield self._event("custom_tool_call_input.delta", delta=said)
        yield self._event("custom_tool_call_input.done", input=said)


class Items:
    """The items that parts make, one after the other, under ids of their own."""

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

    def weigh(self, logprobs: Sequence[Json]) -> None:
        """Take the log-probabilities of the tokens of the next part; those of what is no message are not told."""
        self._logprobs += logprobs

    def add(self, part: Part) -> Iterator[Json]:
        """The events of one more part."""
        logprobs, self._logprobs = self._logprobs, []
        match part:
            case Content(""):
                # Tokens whose text is held back.
                self._logprobs = logprobs
                return
            case Content(text):
                yield from self._go_on(Message, "msg")
                assert isinstance(self._open, Message)
                self._open.weigh(logprobs)
            case Reasoning(text):
                yield from self._go_on(self._reasoning, "rs", is_kept=self._is_kept)
            case CallArguments(_, text):
                assert isinstance(self._open, Call)
            case CallBegun(_, call_id, name):
                # One that the model made up has no namespace either.
                tool = self._tools.by_name.get(name, Tool(name))
                kind, prefix = (CustomCall, "ctc") if tool.is_custom else (Call, "fc")
                item_id, index = self._next(prefix)
                yield from self._begin(kind(item_id, index, call_id=call_id, tool=tool))
                return
        assert self._open is not None
        yield from self._open.add(text)

    def end(self, status: str) -> Iterator[Json]:
        """The events that end the output, whose last item has this status; there is at least one."""
        if self._open is None:
            yield from self._go_on(Message, "msg")
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


def _output_text(text: str, logprobs: Sequence[Json] = ()) -> Json:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": list(logprobs)}


def _reasoning_text(text: str) -> Json:
    return {"type": "reasoning_text", "text": text}


def _summary_text(text: str) -> Json:
    return {"type": "summary_text", "text": text}
