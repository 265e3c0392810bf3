"""Replies of messages, whole and as events, and who writes them."""

from dataclasses import dataclass
from typing import Any

from cosine_node.gateway.api_errors import ApiError
from cosine_node.gateway.body import Body
from cosine_node.gateway.choices import ChoiceFinished
from cosine_node.gateway.messages.blocks import Blocks
from cosine_node.gateway.messages.errors import error_body
from cosine_node.gateway.messages.request import shows_thinking
from cosine_node.gateway.reply_writer import Json, ReplyWriter
from cosine_node.gateway.text_request import TextRequest
from cosine_p2p.replies.parts import Part
from cosine_p2p.request.results import Generation


@dataclass(kw_only=True)
class MessageWriter(ReplyWriter):
    """Writes one message; `most_tokens` is its bound."""

    blocks: Blocks
    most_tokens: int

    async def _take_part(self, index: int, part: Part) -> None:
        for _ in self.blocks.add(part):
            pass

    async def _take_finished(self, finished: ChoiceFinished) -> None:
        for _ in self.blocks.end():
            pass

    async def end(self) -> None:
        (finished,) = self.finished
        done = finished.generation
        ending = self._ending(done) | {"usage": usage(done)}
        await self._write_whole(self._message() | ending | self._metrics())

    def _message(self) -> Json:
        """The message as it is now; that it has not ended, its reason to stop says."""
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
        """Why the message has ended."""
        reason, sequence = "end_turn", None
        if done.finish_reason == "length":
            # The bound, or else the end of the context.
            is_bound = done.tokens >= self.most_tokens
            reason = "max_tokens" if is_bound else "model_context_window_exceeded"
        elif self.blocks.has_calls:
            reason = "tool_use"
        elif done.stop_text is not None:
            reason, sequence = "stop_sequence", done.stop_text
        return {"stop_reason": reason, "stop_sequence": sequence}


@dataclass(kw_only=True)
class StreamedMessageWriter(MessageWriter):
    """Writes the events of a message as they come."""

    is_opened: bool = False

    async def _take_part(self, index: int, part: Part) -> None:
        await self._begin()
        for event in self.blocks.add(part):
            await self._tell(event)

    async def _take_finished(self, finished: ChoiceFinished) -> None:
        await self._begin()
        for event in self.blocks.end():
            await self._tell(event)

    async def end(self) -> None:
        (finished,) = self.finished
        done = finished.generation
        ending = {"type": "message_delta", "delta": self._ending(done), "usage": usage(done)}
        await self._tell(ending | self._metrics())
        await self._tell({"type": "message_stop"})
        await self._close()

    async def fail(self, problem: ApiError) -> None:
        """End with an error: in the stream, or by raising it while no status has been sent."""
        if not self.stream.is_begun:
            raise problem
        await self._tell(error_body(problem, request_id=self.request_id))
        await self._close()

    async def _begin(self) -> None:
        if not self.is_opened:
            self.is_opened = True
            prompt_tokens = len(self.asked.prompt) if self.asked is not None else 0
            # What the verifier knew of it before is told at the end.
            begun = {"input_tokens": prompt_tokens, "output_tokens": 0}
            await self._tell({"type": "message_start", "message": self._message() | {"usage": begun}})
            await self._tell({"type": "ping"})

    async def _tell(self, event: Json) -> None:
        await self._write_event(event, name=event["type"])


def message_writer(body: Body, wanted: TextRequest, /, **about: Any) -> ReplyWriter:
    """Makes the writer of a message."""
    blocks = Blocks(signature=about["request_id"], shows_thinking=shows_thinking(body))
    fields: Json = {"blocks": blocks, "most_tokens": wanted.asked["max_new_tokens"], **about}
    return StreamedMessageWriter(**fields) if wanted.is_streamed else MessageWriter(**fields)


def usage(done: Generation) -> Json:
    """Tokens in and out. Those that the verifier knew before are counted apart; keeping them costs nothing."""
    return {
        "input_tokens": done.prompt_tokens - done.cached_tokens,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": done.cached_tokens,
        "output_tokens": done.tokens,
        "output_tokens_details": {"thinking_tokens": done.reasoning_tokens},
    }
