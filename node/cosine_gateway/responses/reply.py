"""Replies of responses, whole and streamed."""

from collections.abc import Iterable, Iterator
from typing import Final

from cosine_gateway.api_errors import ApiError
from cosine_gateway.body import Body, Json
from cosine_gateway.choices import ChoiceEvent, ChoiceFinished, ChoicePart
from cosine_gateway.logprobs import ChatLogprobs
from cosine_gateway.reply import Api, ReplyContext, ReplyFormat
from cosine_gateway.responses.items import OutputItems
from cosine_gateway.responses.request import KEPT_REASONING, parse_response
from cosine_gateway.responses.tools import Tools
from cosine_p2p.request.results import Generation


class ResponseReply(ReplyFormat):
    """One response, whose output is a list of items. The events of its stream are numbered."""

    def __init__(self, context: ReplyContext) -> None:
        super().__init__(context)
        tools, reasoning = Tools.read(context.body), context.body.get("reasoning") or {}
        self._items = OutputItems(
            context.request_id,
            tools,
            is_summarized=(reasoning.get("summary") or reasoning.get("generate_summary") or "none") != "none",
            is_kept=KEPT_REASONING in (context.body.get("include") or ()),
        )
        self._told_again = repeated_fields(context.body, tools)
        self._events = 0

    def take(self, event: ChoiceEvent) -> Iterator[Json]:
        return self._numbered(super().take(event))

    def _opening(self, index: int) -> Iterator[Json]:
        for kind in ("response.created", "response.in_progress"):
            yield {"type": kind, "response": self._response("in_progress")}

    def _added(self, event: ChoicePart) -> Iterator[Json]:
        logprobs = [_weighed(each) for each in ChatLogprobs().of(event.logprobs, "")["content"]]
        return self._items.add(event.part, logprobs)

    def _ended(self, event: ChoiceFinished) -> Iterator[Json]:
        return self._items.end(_status(event.generation))

    def closing(self) -> Iterator[Json]:
        response = self.whole()
        return self._numbered([{"type": f"response.{response['status']}", "response": response}])

    def whole(self) -> Json:
        done = self.finished[0].generation
        return self._response(_status(done), done)

    def failure(self, problem: ApiError) -> Iterator[Json]:
        # Clients read one of the two.
        error = {"type": "error", "code": problem.code, "message": problem.message, "param": problem.param}
        failed = {"type": "response.failed", "response": self._response("failed", problem=problem)}
        return self._numbered([error, failed])

    def _numbered(self, events: Iterable[Json]) -> Iterator[Json]:
        for event in events:
            yield {"type": event["type"], "sequence_number": self._events, **event}
            self._events += 1

    def _response(self, status: str, done: Generation | None = None, problem: ApiError | None = None) -> Json:
        """The response so far; `done` and `problem` are its end."""
        sampling = None if self.started is None else self.started.request.sampling
        is_cut = status == "incomplete"
        return {
            "id": f"resp_{self.context.request_id}",
            "object": "response",
            "created_at": self.context.created_s,
            "status": status,
            "background": False,
            "error": None if problem is None else {"code": "server_error", "message": problem.message},
            "incomplete_details": {"reason": "max_output_tokens"} if is_cut else None,
            "model": self.context.model,
            "output": list(self._items.output),
            "previous_response_id": None,
            "temperature": None if sampling is None else sampling.temperature,
            "top_p": None if sampling is None else sampling.top_p,
            "system_fingerprint": self.fingerprint,
            **self._told_again,
            "usage": None if done is None else usage(done),
            **({} if done is None else self._metrics()),
        }


def repeated_fields(body: Body, tools: Tools) -> Json:
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


RESPONSES: Final = Api("/responses", parse_response, ResponseReply)
