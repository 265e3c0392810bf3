"""Response bodies of the chat and completion endpoints, whole and in pieces, and who writes them."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from typing import Any, Final

from starlette.responses import JSONResponse
from starlette.types import Send

from cosine_node.gateway.api_errors import ApiError
from cosine_node.gateway.choices import ChoiceEvent, ChoiceFinished, ChoiceStarted, ChoiceText
from cosine_node.metrics.generations import FINISHED_REASONS
from cosine_p2p.request.results import AppliedConfig, Generation
from cosine_protocol.request import Request

FINGERPRINT_DIGITS: Final = 12
"""48 bits, as git abbreviates: enough to tell apart the few models that one client meets."""

SSE_HEADERS: Final = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
]
"""No proxy may keep pieces back, or all; the last is nginx's own header for that."""

Json = dict[str, Any]


class ChatStyle:
    """The shape of a choice of `/v1/chat/completions`: whole, in pieces ("" is the last), and what comes first."""

    id_prefix = "chatcmpl-"
    whole_kind = "chat.completion"
    piece_kind = "chat.completion.chunk"

    def whole(self, text: str) -> Json:
        return {"message": {"role": "assistant", "content": text, "refusal": None}}

    def piece(self, text: str) -> Json:
        return {"delta": {"content": text} if text else {}}

    def first(self) -> Json | None:
        return {"delta": {"role": "assistant", "content": ""}}


class CompletionStyle:
    """The shape of a choice of `/v1/completions`, before whose pieces nothing comes."""

    id_prefix = "cmpl-"
    whole_kind = "text_completion"
    piece_kind = "text_completion"

    def whole(self, text: str) -> Json:
        return {"text": text}

    def piece(self, text: str) -> Json:
        return {"text": text}

    def first(self) -> Json | None:
        return None


Style = ChatStyle | CompletionStyle


@dataclass(frozen=True, slots=True, kw_only=True)
class Heading:
    """The fields that all bodies of one response share. `created_s` is Unix time."""

    style: Style
    request_id: str
    created_s: int
    model: str
    fingerprint: str

    def body(self, kind: str, choices: list[Json]) -> Json:
        return {
            "id": self.style.id_prefix + self.request_id,
            "object": kind,
            "created": self.created_s,
            "model": self.model,
            "system_fingerprint": self.fingerprint,
            "choices": choices,
        }


def fingerprint(request: Request) -> str:
    """`system_fingerprint`: equal for equal weights and numerics, so that equal requests give equal text."""
    content = sha256(request.target_digest + request.numerics.encode()).hexdigest()
    return f"fp_{content[:FINGERPRINT_DIGITS]}"


def whole_reply(heading: Heading, done: Sequence[tuple[ChoiceFinished, str]], *, seed: int) -> Json:
    """The body of a response that is not streamed: finished choices, each with its text."""
    style = heading.style
    finished = [each for each, _ in done]
    choices = [_choice(each.choice.index, style.whole(text), reason_of(each)) for each, text in done]
    closing = {"usage": usage(finished), "metrics": metrics([each.generation for each in finished], seed=seed)}
    return heading.body(style.whole_kind, choices) | closing


def first_piece(heading: Heading, index: int) -> Json | None:
    """The body that opens a streamed choice, if its style has one."""
    opening = heading.style.first()
    return None if opening is None else _piece(heading, [_choice(index, opening, None)])


def text_piece(heading: Heading, index: int, text: str) -> Json:
    """A body with more text of a streamed choice."""
    return _piece(heading, [_choice(index, heading.style.piece(text), None)])


def last_piece(heading: Heading, finished: ChoiceFinished) -> Json:
    """The body that ends a streamed choice."""
    return _piece(heading, [_choice(finished.choice.index, heading.style.piece(""), reason_of(finished))])


def usage_piece(heading: Heading, finished: Sequence[ChoiceFinished]) -> Json:
    """The body without choices that tells the usage of a whole stream."""
    return _piece(heading, []) | {"usage": usage(finished)}


def reason_of(finished: ChoiceFinished) -> str:
    """OpenAI's `finish_reason`."""
    return FINISHED_REASONS[finished.generation.finish_reason]


def usage(finished: Sequence[ChoiceFinished]) -> Json:
    """Tokens, each prompt counted once, however many choices it has."""
    prompt = sum(each.generation.prompt_tokens for each in finished if each.choice.number == 0)
    completion = sum(each.generation.tokens for each in finished)
    return {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}


def metrics(generations: Sequence[Generation], *, seed: int) -> Json:
    """The `metrics` of a response: speculative decoding over all its choices, and the defaults of the model."""
    drafters: dict[str, Json] = {}
    for report in (report for each in generations for report in each.drafters):
        entry = {"peer_id": report.peer_id, "domain": report.domain, "drafted": 0, "accepted": 0}
        total = drafters.setdefault(report.peer_id, entry)
        total["drafted"] += report.drafted
        total["accepted"] += report.accepted
    drafted = sum(each.drafted for each in generations)
    offered = sum(each.offered for each in generations)
    accepted = sum(each.accepted for each in generations)
    rounds = sum(each.rounds for each in generations)
    tokens = sum(each.tokens for each in generations)
    return {
        "speculative_decoding": {
            "drafted": drafted,
            "offered": offered,
            "accepted": accepted,
            "acceptance_rate": round(accepted / offered, 4) if offered else 0.0,
            "rounds": rounds,
            "tokens_per_round": round(tokens / rounds, 4) if rounds else 0.0,
            "drafters": list(drafters.values()),
            "strategy": generations[0].strategy,
            "seed": seed,
        },
        "generation_config": own_config(generations[0].generation_config),
    }


def own_config(applied: AppliedConfig) -> Json:
    """The part of the model's own generation config in a text, of what it gave and of what is not honoured."""
    return {"options": dict(applied.options), "not_honoured": list(applied.not_honoured)}


def sent_event(body: Mapping[str, Any] | str) -> bytes:
    """One server-sent event."""
    data = body if isinstance(body, str) else json.dumps(body, ensure_ascii=False, separators=(",", ":"))
    return f"data: {data}\n\n".encode()


def _piece(heading: Heading, choices: list[Json]) -> Json:
    return heading.body(heading.style.piece_kind, choices)


def _choice(index: int, content: Json, reason: str | None) -> Json:
    return {"index": index, **content, "logprobs": None, "finish_reason": reason}


class WholeReplyWriter:
    """Takes the events of all choices and writes one JSON body once it is ended.

    `is_begun` is true once a status has been sent.
    """

    def __init__(self, heading: Heading, *, seed: int, send: Send) -> None:
        self.finished: list[ChoiceFinished] = []
        self.is_begun = False
        self._heading = heading
        self._seed = seed
        self._send = send
        self._texts: dict[int, str] = {}

    async def take(self, event: ChoiceEvent) -> None:
        match event:
            case ChoiceStarted(_, request):
                self._heading = replace(self._heading, fingerprint=fingerprint(request))
            case ChoiceText(choice, text):
                self._texts[choice.index] = self._texts.get(choice.index, "") + text
            case ChoiceFinished():
                self.finished.append(event)

    async def end(self) -> None:
        in_order = sorted(self.finished, key=lambda each: each.choice.index)
        done = [(each, self._texts.get(each.choice.index, "")) for each in in_order]
        response = JSONResponse(whole_reply(self._heading, done, seed=self._seed))
        # Sent by hand: a Response takes the scope of a request, which has no part in this.
        start = {"type": "http.response.start", "status": response.status_code, "headers": response.raw_headers}
        await self._send(start)
        await self._send({"type": "http.response.body", "body": response.body})

    async def fail(self, problem: ApiError) -> None:
        """Raise the problem: nothing has been sent."""
        raise problem


class StreamedReplyWriter:
    """Writes the events of all choices as they come; the status waits for the first.

    `is_begun` is true once it has been sent. The last piece carries the metrics; with `includes_usage` it is one
    more, without choices.
    """

    def __init__(self, heading: Heading, *, seed: int, send: Send, choices: int, includes_usage: bool) -> None:
        self.finished: list[ChoiceFinished] = []
        self.is_begun = False
        self._heading = heading
        self._seed = seed
        self._send = send
        self._choices = choices
        self._includes_usage = includes_usage
        self._opened: set[int] = set()

    async def take(self, event: ChoiceEvent) -> None:
        match event:
            case ChoiceStarted(_, request):
                self._heading = replace(self._heading, fingerprint=fingerprint(request))
            case ChoiceText(choice, text):
                await self._open(choice.index)
                await self._piece(text_piece(self._heading, choice.index, text))
            case ChoiceFinished(choice):
                await self._open(choice.index)
                self.finished.append(event)
                piece = last_piece(self._heading, event)
                is_last = len(self.finished) == self._choices and not self._includes_usage
                await self._piece(piece | self._metrics() if is_last else piece)

    async def end(self) -> None:
        if self._includes_usage:
            closing = usage_piece(self._heading, self.finished) | self._metrics()
            await self._write(sent_event(closing))
        await self._close()

    async def fail(self, problem: ApiError) -> None:
        """End with an error: in the stream, or by raising it while no status has been sent."""
        if not self.is_begun:
            raise problem
        await self._write(sent_event(problem.body))
        await self._close()

    async def _open(self, index: int) -> None:
        """Write what comes before the first piece of a choice."""
        if index in self._opened:
            return
        self._opened.add(index)
        if opening := first_piece(self._heading, index):
            await self._piece(opening)

    async def _piece(self, body: Json) -> None:
        await self._write(sent_event(body | {"usage": None} if self._includes_usage else body))

    def _metrics(self) -> Json:
        return {"metrics": metrics([each.generation for each in self.finished], seed=self._seed)}

    async def _write(self, data: bytes) -> None:
        if not self.is_begun:
            self.is_begun = True
            await self._send({"type": "http.response.start", "status": 200, "headers": SSE_HEADERS})
        await self._send({"type": "http.response.body", "body": data, "more_body": True})

    async def _close(self) -> None:
        await self._send({"type": "http.response.body", "body": sent_event("[DONE]")})


ReplyWriter = WholeReplyWriter | StreamedReplyWriter
