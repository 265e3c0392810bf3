"""The writer of messages, whole and streamed."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from cosine_node.gateway.api_errors import ApiError
from cosine_node.gateway.body import Body
from cosine_node.gateway.messages.blocks import Blocks
from cosine_node.gateway.messages.errors import error_body
from cosine_node.gateway.messages.request import shows_thinking
from cosine_node.gateway.reply_writer import Json, OneTextWriter, ReplyWriter
from cosine_node.gateway.text_request import TextRequest
from cosine_p2p.replies.parts import Part
from cosine_p2p.request.results import Generation


@dataclass(kw_only=True)
class MessageWriter(OneTextWriter):
    """Writes one message of at most `most_tokens`."""

    blocks: Blocks
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
            is_bound = done.tokens >= self.most_tokens
            reason = "max_tokens" if is_bound else "model_context_window_exceeded"
        elif self.blocks.has_calls:
            reason = "tool_use"
        elif done.stop_text is not None:
            reason, sequence = "stop_sequence", done.stop_text
        return {"stop_reason": reason, "stop_sequence": sequence}


def message_writer(body: Body, wanted: TextRequest, /, **about: Any) -> ReplyWriter:
    blocks = Blocks(signature=about["request_id"], shows_thinking=shows_thinking(body))
    most_tokens = wanted.asked["max_new_tokens"]
    return MessageWriter(blocks=blocks, most_tokens=most_tokens, is_streamed=wanted.is_streamed, **about)


def usage(done: Generation) -> Json:
    """Token counts; cached prompt tokens are counted separately, and writing them to the cache is free."""
    return {
        "input_tokens": done.prompt_tokens - done.cached_tokens,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": done.cached_tokens,
        "output_tokens": done.tokens,
        "output_tokens_details": {"thinking_tokens": done.reasoning_tokens},
    }
