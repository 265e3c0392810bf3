"""Replies of messages, whole and streamed: one message of blocks."""

import json
from collections.abc import Iterator
from typing import Any, Final

from cosine_gateway.api_errors import ApiError, error_body
from cosine_gateway.body import Json
from cosine_gateway.choices import ChoiceFinished, ChoicePart
from cosine_gateway.messages.request import parse_message
from cosine_gateway.reply import Api, ReplyContext, ReplyFormat
from cosine_p2p.replies.parts import CallArguments, CallBegun, Content, Reasoning
from cosine_p2p.request.results import Generation

_DELTAS: Final = {
    "text": ("text_delta", "text"),
    "thinking": ("thinking_delta", "thinking"),
    "tool_use": ("input_json_delta", "partial_json"),
}
"""The type and field of the deltas of each kind of block."""


class MessageReply(ReplyFormat):
    """One message.

    Its last block grows while `_said` is not None. Blocks of thinking have a `signature`, without which clients do
    not send them back; thinking that the request omits is a block without text.
    """

    def __init__(self, context: ReplyContext) -> None:
        super().__init__(context)
        thinking = context.body.get("thinking") or {}
        self._shows_thinking = thinking.get("display") != "omitted"
        self._content: list[Json] = []
        self._said: list[str] | None = None

    def _opening(self, index: int) -> Iterator[Json]:
        prompt_tokens = 0 if self.started is None else len(self.started.request.prompt)
        # The cached part of the prompt is known only at the end.
        begun = {"input_tokens": prompt_tokens, "output_tokens": 0}
        yield {"type": "message_start", "message": self._message() | {"usage": begun}}
        yield {"type": "ping"}

    def _added(self, event: ChoicePart) -> Iterator[Json]:
        match event.part:
            case Content(said):
                yield from self._continue({"type": "text", "text": ""})
            case Reasoning(said):
                signature = self.context.request_id
                yield from self._continue({"type": "thinking", "thinking": "", "signature": signature})
                if not self._shows_thinking:
                    return
            case CallBegun(_, call_id, name):
                yield from self._begin({"type": "tool_use", "id": call_id, "name": name, "input": {}})
                return
            case CallArguments(_, said):
                pass
        assert self._said is not None
        self._said.append(said)
        kind, name = _DELTAS[self._content[-1]["type"]]
        yield self._event("delta", delta={"type": kind, name: said})

    def _ended(self, event: ChoiceFinished) -> Iterator[Json]:
        yield from self._end_block()

    def _continue(self, block: Json) -> Iterator[Json]:
        """Begin a block unless one of its type grows."""
        if self._said is None or self._content[-1]["type"] != block["type"]:
            yield from self._begin(block)

    def _begin(self, block: Json) -> Iterator[Json]:
        yield from self._end_block()
        self._content.append(block)
        self._said = []
        # Clients append the signature's delta to this one.
        yield self._event("start", content_block=block | ({"signature": ""} if "signature" in block else {}))

    def _end_block(self) -> Iterator[Json]:
        if self._said is None:
            return
        block, said, self._said = self._content[-1], "".join(self._said), None
        kind = block["type"]
        if kind == "thinking":
            yield self._event("delta", delta={"type": "signature_delta", "signature": block["signature"]})
        yield self._event("stop")
        self._content[-1] = block | ({"input": call_input(said)} if kind == "tool_use" else {kind: said})

    def _event(self, kind: str, **fields: Any) -> Json:
        return {"type": f"content_block_{kind}", "index": len(self._content) - 1, **fields}

    def closing(self) -> Iterator[Json]:
        done = self.finished[0].generation
        yield {"type": "message_delta", "delta": self._ending(done), "usage": usage(done)} | self._metrics()
        yield {"type": "message_stop"}

    def whole(self) -> Json:
        done = self.finished[0].generation
        return self._message() | self._ending(done) | {"usage": usage(done)} | self._metrics()

    def failure(self, problem: ApiError) -> Iterator[Json]:
        yield error_body(problem, request_id=self.context.request_id)

    def _message(self) -> Json:
        """The message so far, without a reason to stop."""
        return {
            "id": f"msg_{self.context.request_id}",
            "type": "message",
            "role": "assistant",
            "model": self.context.model,
            "content": list(self._content),
            "stop_reason": None,
            "stop_sequence": None,
        }

    def _ending(self, done: Generation) -> Json:
        reason, sequence = "end_turn", None
        if done.finish_reason == "length":
            is_bound = done.usage.completion_tokens >= self.context.wanted.asked["max_new_tokens"]
            reason = "max_tokens" if is_bound else "model_context_window_exceeded"
        elif any(block["type"] == "tool_use" for block in self._content):
            reason = "tool_use"
        elif done.stop_text is not None:
            reason, sequence = "stop_sequence", done.stop_text
        return {"stop_reason": reason, "stop_sequence": sequence}


def call_input(arguments: str) -> Json:
    """Parse the arguments of a call; anything but an object is wrapped as `input`."""
    try:
        found = json.loads(arguments or "{}")
    except (ValueError, RecursionError):
        found = arguments
    return found if isinstance(found, dict) else {"input": found}


def usage(done: Generation) -> Json:
    """Token counts; cached prompt tokens are counted separately, and writing them to the cache is free."""
    return {
        "input_tokens": done.usage.prompt_tokens - done.usage.cached_tokens,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": done.usage.cached_tokens,
        "output_tokens": done.usage.completion_tokens,
        "output_tokens_details": {"thinking_tokens": done.usage.reasoning_tokens},
    }


MESSAGES: Final = Api("/messages", parse_message, MessageReply)
