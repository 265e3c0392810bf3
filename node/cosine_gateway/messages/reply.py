"""The writer of messages, whole and streamed, and the blocks of their content."""

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final

from cosine_gateway.api_errors import ApiError, error_body
from cosine_gateway.body import Body
from cosine_gateway.messages.request import shows_thinking
from cosine_gateway.reply_writer import Json, OneTextWriter, ReplyWriter
from cosine_gateway.text_request import TextRequest
from cosine_p2p.replies.parts import CallArguments, CallBegun, Content, Part, Reasoning
from cosine_p2p.request.results import Generation

_DELTAS: Final = {
    "text": ("text_delta", "text"),
    "thinking": ("thinking_delta", "thinking"),
    "tool_use": ("input_json_delta", "partial_json"),
}
"""The type and field of the deltas of each kind of block."""


@dataclass
class ContentBlock:
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


class ContentBlocks:
    """Converts parts to blocks.

    Blocks of thinking have a `signature`, without which clients do not send them back. Thinking that is not shown
    is a block without text.
    """

    def __init__(self, *, signature: str, shows_thinking: bool = True) -> None:
        self._signature = signature
        self._shows_thinking = shows_thinking
        self._open: ContentBlock | None = None
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
        self._open = ContentBlock(len(self.content), begun)
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


@dataclass(kw_only=True)
class MessageWriter(OneTextWriter):
    """Writes one message of at most `most_tokens`."""

    blocks: ContentBlocks
    most_tokens: int

    def _opening(self) -> Iterator[Json]:
        prompt_tokens = len(self.asked.prompt) if self.asked is not None else 0
        # The cached part of the prompt is known only at the end.
        begun = {"input_tokens": prompt_tokens, "output_tokens": 0}
        yield {"type": "message_start", "message": self._message() | {"usage": begun}}
        yield {"type": "ping"}

    def _added(self, part: Part) -> Iterator[Json]:
        return self.blocks.add(part)

    def _ended(self, done: Generation) -> Iterator[Json]:
        return self.blocks.end()

    def _closing(self, done: Generation) -> Iterator[Json]:
        ending = {"type": "message_delta", "delta": self._ending(done), "usage": usage(done)}
        yield ending | self._metrics()
        yield {"type": "message_stop"}

    def _failure(self, problem: ApiError) -> Iterator[Json]:
        yield error_body(problem, request_id=self.request_id)

    def _whole(self, done: Generation) -> Json:
        return self._message() | self._ending(done) | {"usage": usage(done)} | self._metrics()

    def _message(self) -> Json:
        """The message so far, without a reason to stop."""
        return {
            "id": f"msg_{self.request_id}",
            "type": "message",
            "role": "assistant",
            "model": self.model,
            "content": list(self.blocks.content),
            "stop_reason": None,
            "stop_sequence": None,
        }

    def _ending(self, done: Generation) -> Json:
        reason, sequence = "end_turn", None
        if done.finish_reason == "length":
            is_bound = done.usage.completion_tokens >= self.most_tokens
            reason = "max_tokens" if is_bound else "model_context_window_exceeded"
        elif self.blocks.has_calls:
            reason = "tool_use"
        elif done.stop_text is not None:
            reason, sequence = "stop_sequence", done.stop_text
        return {"stop_reason": reason, "stop_sequence": sequence}


def message_writer(body: Body, wanted: TextRequest, /, **about: Any) -> ReplyWriter:
    blocks = ContentBlocks(signature=about["request_id"], shows_thinking=shows_thinking(body))
    most_tokens = wanted.asked["max_new_tokens"]
    return MessageWriter(blocks=blocks, most_tokens=most_tokens, is_streamed=wanted.is_streamed, **about)


def usage(done: Generation) -> Json:
    """Token counts; cached prompt tokens are counted separately, and writing them to the cache is free."""
    return {
        "input_tokens": done.usage.prompt_tokens - done.usage.cached_tokens,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": done.usage.cached_tokens,
        "output_tokens": done.usage.completion_tokens,
        "output_tokens_details": {"thinking_tokens": done.usage.reasoning_tokens},
    }
