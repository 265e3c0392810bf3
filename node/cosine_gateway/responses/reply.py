"""The writer of responses, whole and streamed."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from cosine_gateway.api_errors import ApiError
from cosine_gateway.body import Body
from cosine_gateway.choices import ChoicePart
from cosine_gateway.logprobs import ChatLogprobs
from cosine_gateway.reply_writer import Json, OneTextWriter, ReplyWriter
from cosine_gateway.responses.items import OutputItems
from cosine_gateway.responses.request import KEPT_REASONING
from cosine_gateway.responses.tools import Tools
from cosine_gateway.text_request import TextRequest
from cosine_p2p.replies.parts import Part
from cosine_p2p.request.results import Generation


@dataclass(kw_only=True)
class ResponseWriter(OneTextWriter):
    """Writes one response; `told_again` are fields repeated from the request, `events` counts the events sent."""

    items: OutputItems
    told_again: Json
    events: int = 0

    async def _take_part(self, event: ChoicePart) -> None:
        self.items.weigh([_weighed(each) for each in ChatLogprobs().of(event.logprobs, "")["content"]])
        await super()._take_part(event)

    def _opening(self) -> Iterator[Json]:
        for kind in ("response.created", "response.in_progress"):
            yield {"type": kind, "response": self._response("in_progress")}

    def _added(self, part: Part) -> Iterator[Json]:
        return self.items.add(part)

    def _ended(self, done: Generation) -> Iterator[Json]:
        return self.items.end(_status(done))

    def _closing(self, done: Generation) -> Iterator[Json]:
        yield {"type": f"response.{_status(done)}", "response": self._whole(done)}

    def _failure(self, problem: ApiError) -> Iterator[Json]:
        # Clients read one of the two.
        yield {"type": "error", "code": problem.code, "message": problem.message, "param": problem.param}
        yield {"type": "response.failed", "response": self._response("failed", problem=problem)}

    def _whole(self, done: Generation) -> Json:
        return self._response(_status(done), done)

    async def _write_event(self, body: Json) -> None:
        numbered = {"type": body["type"], "sequence_number": self.events, **body}
        self.events += 1
        await super()._write_event(numbered)

    def _response(self, status: str, done: Generation | None = None, problem: ApiError | None = None) -> Json:
        """The response so far; `done` and `problem` are its end."""
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


def response_writer(body: Body, wanted: TextRequest, /, **about: Any) -> ReplyWriter:
    tools = Tools.read(body)
    reasoning = body.get("reasoning") or {}
    is_summarized = (reasoning.get("summary") or reasoning.get("generate_summary") or "none") != "none"
    is_kept = KEPT_REASONING in (body.get("include") or ())
    items = OutputItems(about["request_id"], tools, is_summarized=is_summarized, is_kept=is_kept)
    again = told_again(body, tools)
    return ResponseWriter(items=items, told_again=again, is_streamed=wanted.is_streamed, **about)


def told_again(body: Body, tools: Tools) -> Json:
    """Return the fields that a response repeats from its request, with only the tools given to the model."""
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
    """Token counts; writing prompt tokens to the cache is free and not counted."""
    return {
        "input_tokens": done.usage.prompt_tokens,
        "input_tokens_details": {"cached_tokens": done.usage.cached_tokens, "cache_write_tokens": 0},
        "output_tokens": done.usage.completion_tokens,
        "output_tokens_details": {"reasoning_tokens": done.usage.reasoning_tokens},
        "total_tokens": done.usage.total_tokens,
    }


def _weighed(token: Json) -> Json:
    """Convert a token of a chat's log-probabilities; in a response, bytes are never null."""
    top = [each | {"bytes": each["bytes"] or []} for each in token["top_logprobs"]]
    return token | {"bytes": token["bytes"] or [], "top_logprobs": top}


def _status(done: Generation) -> str:
    return "incomplete" if done.finish_reason == "length" else "completed"
