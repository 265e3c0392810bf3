"""Replies of responses, whole and as events, and who writes them."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from cosine_node.gateway.api_errors import ApiError
from cosine_node.gateway.body import Body
from cosine_node.gateway.choices import ChoiceFinished
from cosine_node.gateway.logprobs import ChatLogprobs
from cosine_node.gateway.reply_writer import Json, ReplyWriter
from cosine_node.gateway.responses.items import Items
from cosine_node.gateway.responses.request import KEPT_REASONING
from cosine_node.gateway.responses.tools import Tools
from cosine_node.gateway.text_request import TextRequest
from cosine_p2p.replies.parts import Part
from cosine_p2p.request.logprobs import NamedToken
from cosine_p2p.request.results import Generation


@dataclass(kw_only=True)
class ResponseWriter(ReplyWriter):
    """Writes one response: its items, and `told_again`, what it repeats of the request."""

    items: Items
    told_again: Json

    def _take_logprobs(self, index: int, part: Part, logprobs: Sequence[NamedToken]) -> None:
        self.items.weigh([_weighed(each) for each in ChatLogprobs().of(logprobs, "")["content"]])

    async def _take_part(self, index: int, part: Part) -> None:
        for _ in self.items.add(part):
            pass

    async def _take_finished(self, finished: ChoiceFinished) -> None:
        for _ in self.items.end(_status(finished.generation)):
            pass

    async def end(self) -> None:
        (finished,) = self.finished
        await self._write_whole(self._response(_status(finished.generation), finished.generation))

    def _response(self, status: str, done: Generation | None = None, problem: ApiError | None = None) -> Json:
        """The response as it is now, with what is known of it once it has ended."""
        sampling = self.asked.sampling if self.asked is not None else None
        is_cut = status == "incomplete"
        return {
            "id": f"resp_{self.request_id}",
            "object": "response",
            "created_at": self.created_s,
            "status": status,
            "background": False,
            "error": None if problem is None else {"code": "server_error", "message": problem.message},
            "incomplete_details": {"reason": "max_output_tokens"} if is_cut else None,
            "model": self.model,
            "output": list(self.items.output),
            "previous_response_id": None,
            "temperature": sampling.temperature if sampling is not None else None,
            "top_p": sampling.top_p if sampling is not None else None,
            "system_fingerprint": self.fingerprint,
            **self.told_again,
            "usage": None if done is None else usage(done),
            **({} if done is None else self._metrics()),
        }


@dataclass(kw_only=True)
class StreamedResponseWriter(ResponseWriter):
    """Writes the events of a response as they come."""

    events: int = field(default=0)

    async def _take_part(self, index: int, part: Part) -> None:
        await self._begin()
        for event in self.items.add(part):
            await self._tell(event)

    async def _take_finished(self, finished: ChoiceFinished) -> None:
        await self._begin()
        for event in self.items.end(_status(finished.generation)):
            await self._tell(event)

    async def end(self) -> None:
        (finished,) = self.finished
        status = _status(finished.generation)
        await self._tell({"type": f"response.{status}", "response": self._response(status, finished.generation)})
        await self._close()

    async def fail(self, problem: ApiError) -> None:
        """End with an error: in two events, since clients read one of them, or by raising it before any."""
        if not self.stream.is_begun:
            raise problem
        await self._tell(
            {"type": "error", "code": problem.code, "message": problem.message, "param": problem.param}
        )
        await self._tell({"type": "response.failed", "response": self._response("failed", problem=problem)})
        await self._close()

    async def _begin(self) -> None:
        if not self.events:
            for kind in ("response.created", "response.in_progress"):
                await self._tell({"type": kind, "response": self._response("in_progress")})

    async def _tell(self, event: Json) -> None:
        numbered = {"type": event["type"], "sequence_number": self.events, **event}
        self.events += 1
        await self._write_event(numbered, name=event["type"])


def response_writer(body: Body, wanted: TextRequest, /, **about: Any) -> ReplyWriter:
    """Makes the writer of a response."""
    tools = Tools.read(body)
    reasoning = body.get("reasoning") or {}
    is_summarized = (reasoning.get("summary") or reasoning.get("generate_summary") or "none") != "none"
    fields: Json = {
        "items": Items(
            about["request_id"],
            tools,
            is_summarized=is_summarized,
            is_kept=KEPT_REASONING in (body.get("include") or ()),
        ),
        "told_again": told_again(body, tools),
        **about,
    }
    return StreamedResponseWriter(**fields) if wanted.is_streamed else ResponseWriter(**fields)


def told_again(body: Body, tools: Tools) -> Json:
    """What a response repeats of its request, of the tools those that the model was told."""
    reasoning, text = body.get("reasoning") or {}, body.get("text") or {}
    return {
        "instructions": body.get("instructions"),
        "max_output_tokens": body.get("max_output_tokens"),
        "max_tool_calls": None,
        "metadata": body.get("metadata") or {},
        "prompt_cache_key": body.get("prompt_cache_key"),
        "safety_identifier": body.get("safety_identifier"),
        "parallel_tool_calls": body.get("parallel_tool_calls") is not False,
        "reasoning": {"effort": reasoning.get("effort"), "summary": reasoning.get("summary")},
        "service_tier": "default",
        "store": False,
        "text": {"format": text.get("format") or {"type": "text"}, "verbosity": "medium"},
        "tool_choice": body.get("tool_choice") or "auto",
        "tools": list(tools.shown),
        "top_logprobs": body.get("top_logprobs") or 0,
        "truncation": "disabled",
        "user": body.get("user"),
    }


def usage(done: Generation) -> Json:
    """Tokens in and out; nothing is paid for what a verifier keeps, and it is not counted."""
    return {
        "input_tokens": done.prompt_tokens,
        "input_tokens_details": {"cached_tokens": done.cached_tokens, "cache_write_tokens": 0},
        "output_tokens": done.tokens,
        "output_tokens_details": {"reasoning_tokens": done.reasoning_tokens},
        "total_tokens": done.prompt_tokens + done.tokens,
    }


def _weighed(token: Json) -> Json:
    """A token of a chat's log-probabilities; a response always has its bytes, special ones none."""
    top = [each | {"bytes": each["bytes"] or []} for each in token["top_logprobs"]]
    return token | {"bytes": token["bytes"] or [], "top_logprobs": top}


def _status(done: Generation) -> str:
    return "incomplete" if done.finish_reason == "length" else "completed"
