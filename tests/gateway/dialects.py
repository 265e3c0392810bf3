"""The gateway's APIs, with functions to build their requests and to read their replies."""

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final

from anthropic.types import ErrorResponse, Message, RawMessageStreamEvent
from openai.types import Completion
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter
from starlette.types import Send

from cosine_gateway.chats import CHATS
from cosine_gateway.completions import COMPLETIONS
from cosine_gateway.messages.reply import MESSAGES
from cosine_gateway.reply import Api, ReplyContext, ReplyWriter
from cosine_gateway.responses.reply import RESPONSES
from cosine_gateway.text_request import TextRequest
from tests.gateway.gateways import PROMPT, Gateway, Reply

Json = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Dialect:
    """One API.

    `asking` makes the fields of a body that ask with a text, `limit` is the field of its length, `stop` that of its
    stop strings. `whole` and `event` check bodies and events by the types of the API's own package. `text` finds
    the text of a body, `piece` that of an event, `usage` the tokens in and out, `failed` the kind of an error in an
    event. `overloaded` is the status where no place is free.
    """

    api: Api
    limit: str
    stop: str | None
    asking: Callable[[str], Json]
    whole: TypeAdapter[Any]
    event: TypeAdapter[Any]
    text: Callable[[Json], str]
    piece: Callable[[Json], str]
    usage: Callable[[Json], tuple[int, int]]
    failed: Callable[[Json], str | None]
    overloaded: int = 503

    @property
    def path(self) -> str:
        return f"/v1{self.api.path}"

    def parse(self, body: Json) -> TextRequest:
        return self.api.parse(body)

    def body(self, prompt: str = PROMPT, *, tokens: int = 24, **fields: Any) -> Json:
        """A request for a greedy text."""
        return {**self.asking(prompt), self.limit: tokens, "temperature": 0, **fields}

    async def ask(self, gateway: Gateway, prompt: str = PROMPT, **fields: Any) -> Reply:
        """Ask a gateway; `hang_up` and `headers` are options of the call."""
        given = {name: fields.pop(name) for name in ("hang_up", "headers") if name in fields}
        return await gateway.post(self.path, self.body(prompt, **fields), **given)

    def writer(self, body: Json, send: Send) -> ReplyWriter:
        """The writer of the reply to a body."""
        context = ReplyContext(body=body, wanted=self.parse(body), request_id="r", created_s=9, model="m", seed=7)
        return ReplyWriter(self.api.reply(context), send)

    def events(self, sent: bytes) -> list[Json]:
        """The events of a stream, each checked; comments and the mark at the end are left out."""
        return list(self._events(sent))

    def _events(self, sent: bytes) -> Iterator[Json]:
        for block in sent.decode().split("\n\n"):
            *named, data = block.split("\n")
            if not data.startswith("data: ") or data == "data: [DONE]":
                assert not named and (not data or data.startswith((":", "data: [DONE]")))
                continue
            event = json.loads(data.removeprefix("data: "))
            assert named == ([f"event: {event['type']}"] if "type" in event else [])
            if self.failed(event) is None and event.get("type") != "ping":
                self.event.validate_python(event)
            yield event

    def streamed(self, reply: Reply) -> tuple[str, str | None]:
        """The text of a stream, and the kind of the error that it ended with."""
        events = self.events(reply.body)
        failures = [kind for kind in map(self.failed, events) if kind is not None]
        text = "".join(self.piece(event) for event in events if self.failed(event) is None)
        return text, failures[0] if failures else None

    def error(self, reply: Reply) -> tuple[int, str | None]:
        """The status of a refusal and, in OpenAI's shape, the field that it names."""
        if "type" in reply.json:
            # The package does not define it, but the API's documentation does.
            if reply.status != 413:
                ErrorResponse.model_validate(reply.json)
            assert reply.json["request_id"] == reply.headers["request-id"] == reply.headers["x-request-id"]
            return reply.status, None
        return reply.status, reply.error["param"]


def _chat(text: str) -> Json:
    return {"messages": [{"role": "user", "content": text}]}


def _openais_usage(body: Json) -> tuple[int, int]:
    return body["usage"]["prompt_tokens"], body["usage"]["completion_tokens"]


def _openais_failure(event: Json) -> str | None:
    return event["error"]["code"] if "error" in event else None


def _delta(event: Json, kind: str) -> str:
    return str(event["delta"]) if event["type"] == kind else ""


OPENAIS: Final[Json] = {"stop": "stop", "usage": _openais_usage, "failed": _openais_failure, "limit": "max_tokens"}
DIALECTS: Final = {
    "chats": Dialect(
        api=CHATS,
        asking=_chat,
        whole=TypeAdapter(ChatCompletion),
        event=TypeAdapter(ChatCompletionChunk),
        text=lambda body: body["choices"][0]["message"]["content"],
        piece=lambda event: "".join(each["delta"].get("content") or "" for each in event["choices"]),
        **OPENAIS,
    ),
    "completions": Dialect(
        api=COMPLETIONS,
        asking=lambda text: {"prompt": text},
        whole=TypeAdapter(Completion),
        event=TypeAdapter(Json),
        text=lambda body: body["choices"][0]["text"],
        piece=lambda event: "".join(each["text"] for each in event["choices"]),
        **OPENAIS,
    ),
    "responses": Dialect(
        api=RESPONSES,
        limit="max_output_tokens",
        stop=None,
        asking=lambda text: {"input": text},
        whole=TypeAdapter(Response),
        event=TypeAdapter(ResponseStreamEvent),
        text=lambda body: body["output"][-1]["content"][0]["text"],
        piece=lambda event: _delta(event, "response.output_text.delta"),
        usage=lambda body: (body["usage"]["input_tokens"], body["usage"]["output_tokens"]),
        failed=lambda event: event["code"] if event["type"] == "error" else None,
    ),
    "messages": Dialect(
        api=MESSAGES,
        limit="max_tokens",
        stop="stop_sequences",
        asking=_chat,
        whole=TypeAdapter(Message),
        event=TypeAdapter(RawMessageStreamEvent),
        text=lambda body: body["content"][0]["text"],
        piece=lambda event: event["delta"].get("text", "") if event["type"] == "content_block_delta" else "",
        usage=lambda body: (body["usage"]["input_tokens"], body["usage"]["output_tokens"]),
        failed=lambda event: event["error"]["type"] if event["type"] == "error" else None,
        overloaded=529,
    ),
}
