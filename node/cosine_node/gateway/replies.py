"""Response bodies of the chat and completion endpoints, whole and in pieces, and who writes them."""

import json
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from hashlib import sha256
from typing import Any, Final

from starlette.responses import JSONResponse
from starlette.types import Send

from cosine_node.gateway.api_errors import ApiError
from cosine_node.gateway.choices import ChoiceEvent, ChoiceFinished, ChoicePart, ChoiceStarted
from cosine_node.metrics.generations import FINISHED_REASONS
from cosine_p2p.replies.parts import Content, Part, Reply
from cosine_p2p.request.origins import joined_origins
from cosine_p2p.request.results import AppliedConfig, Generation

Json = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Style:
    """The shape of an endpoint's choices: whole, in pieces (None is the last), and what comes before the pieces."""

    id_prefix: str
    whole_kind: str
    piece_kind: str
    whole: Callable[[Reply], Json]
    piece: Callable[[Part | None], Json]
    first: Json | None = None


CHAT: Final = Style(
    id_prefix="chatcmpl-",
    whole_kind="chat.completion",
    piece_kind="chat.completion.chunk",
    whole=lambda reply: {"message": {"role": "assistant", "content": reply.content, "refusal": None}},
    piece=lambda part: {"delta": {"content": part.text} if isinstance(part, Content) else {}},
    first={"delta": {"role": "assistant", "content": ""}},
)
COMPLETION: Final = Style(
    id_prefix="cmpl-",
    whole_kind="text_completion",
    piece_kind="text_completion",
    whole=lambda reply: {"text": reply.content},
    piece=lambda part: {"text": part.text if isinstance(part, Content) else ""},
)


def reason_of(finished: ChoiceFinished) -> str:
    """OpenAI's `finish_reason`."""
    return FINISHED_REASONS[finished.generation.finish_reason]


def usage(finished: Sequence[ChoiceFinished]) -> Json:
    """Tokens, each prompt counted once, however many choices it has, and what its verifier knew of it before."""
    prompt = sum(each.generation.prompt_tokens for each in finished if each.choice.number == 0)
    cached = sum(each.generation.cached_tokens for each in finished if each.choice.number == 0)
    completion = sum(each.generation.tokens for each in finished)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
        "prompt_tokens_details": {"cached_tokens": cached},
    }


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
            "origins": [asdict(origin) for origin in joined_origins(each.origins for each in generations)],
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


@dataclass(kw_only=True)
class ReplyWriter(ABC):
    """Takes the events of all choices and writes the reply; its bodies share the first fields.

    `created_s` is Unix time. `is_begun` is true once a status has been sent.
    """

    style: Style
    request_id: str
    created_s: int
    model: str
    seed: int
    send: Send
    fingerprint: str = ""
    finished: list[ChoiceFinished] = field(default_factory=list)
    is_begun: bool = False

    async def take(self, event: ChoiceEvent) -> None:
        """Take the next event."""
        match event:
            case ChoiceStarted(_, request):
                # Equal for equal weights and numerics, so that equal requests give equal text. 48 bits, as git
                # abbreviates: enough to tell apart the few models that one client meets.
                content = sha256(request.target_digest + request.numerics.encode()).hexdigest()
                self.fingerprint = f"fp_{content[:12]}"
            case ChoicePart(choice, part):
                await self._take_part(choice.index, part)
            case ChoiceFinished():
                self.finished.append(event)
                await self._take_finished(event)

    @abstractmethod
    async def _take_part(self, index: int, part: Part) -> None: ...

    @abstractmethod
    async def _take_finished(self, finished: ChoiceFinished) -> None: ...

    @abstractmethod
    async def end(self) -> None:
        """Write what is left, now that all choices have finished."""

    async def fail(self, problem: ApiError) -> None:
        """End with an error: raise it, while no status has been sent."""
        raise problem

    def _body(self, kind: str, choices: list[Json]) -> Json:
        return {
            "id": self.style.id_prefix + self.request_id,
            "object": kind,
            "created": self.created_s,
            "model": self.model,
            "system_fingerprint": self.fingerprint,
            "choices": choices,
        }

    def _choice(self, index: int, content: Json, reason: str | None = None) -> Json:
        return {"index": index, **content, "logprobs": None, "finish_reason": reason}

    def _metrics(self) -> Json:
        return {"metrics": metrics([each.generation for each in self.finished], seed=self.seed)}


@dataclass(kw_only=True)
class WholeReplyWriter(ReplyWriter):
    """Writes one JSON body once it is ended."""

    parts: defaultdict[int, list[Part]] = field(default_factory=lambda: defaultdict(list))

    async def _take_part(self, index: int, part: Part) -> None:
        self.parts[index].append(part)

    async def _take_finished(self, finished: ChoiceFinished) -> None:
        return

    async def end(self) -> None:
        self.finished.sort(key=lambda each: each.choice.index)
        choices = [
            self._choice(
                each.choice.index, self.style.whole(Reply.of(self.parts[each.choice.index])), reason_of(each)
            )
            for each in self.finished
        ]
        body = self._body(self.style.whole_kind, choices) | {"usage": usage(self.finished)} | self._metrics()
        response = JSONResponse(body)
        # Sent by hand: a Response takes the scope of a request, which has no part in this.
        start = {"type": "http.response.start", "status": response.status_code, "headers": response.raw_headers}
        await self.send(start)
        await self.send({"type": "http.response.body", "body": response.body})


@dataclass(kw_only=True)
class StreamedReplyWriter(ReplyWriter):
    """Writes the events of all choices as they come; the status waits for the first.

    The last piece carries the metrics; with `includes_usage` it is one more, without choices.
    """

    choices: int
    includes_usage: bool
    opened: set[int] = field(default_factory=set)

    async def _take_part(self, index: int, part: Part) -> None:
        await self._open(index)
        await self._write_piece([self._choice(index, self.style.piece(part))])

    async def _take_finished(self, finished: ChoiceFinished) -> None:
        index = finished.choice.index
        await self._open(index)
        is_last = len(self.finished) == self.choices and not self.includes_usage
        last = self._choice(index, self.style.piece(None), reason_of(finished))
        await self._write_piece([last], self._metrics() if is_last else {})

    async def end(self) -> None:
        if self.includes_usage:
            await self._write_piece([], {"usage": usage(self.finished)} | self._metrics())
        await self._close()

    async def fail(self, problem: ApiError) -> None:
        """End with an error: in the stream, or by raising it while no status has been sent."""
        if not self.is_begun:
            raise problem
        await self._write(problem.body)
        await self._close()

    async def _open(self, index: int) -> None:
        """Write what comes before the first piece of a choice."""
        if index not in self.opened:
            self.opened.add(index)
            if self.style.first:
                await self._write_piece([self._choice(index, self.style.first)])

    async def _write_piece(self, choices: list[Json], more: Json | None = None) -> None:
        nothing_yet = {"usage": None} if self.includes_usage else {}
        await self._write(self._body(self.style.piece_kind, choices) | nothing_yet | (more or {}))

    async def _write(self, body: Json) -> None:
        if not self.is_begun:
            self.is_begun = True
            # No proxy may keep pieces back, or all; the last header is nginx's own for that.
            headers = [
                (b"content-type", b"text/event-stream; charset=utf-8"),
                (b"cache-control", b"no-cache"),
                (b"x-accel-buffering", b"no"),
            ]
            await self.send({"type": "http.response.start", "status": 200, "headers": headers})
        await self.send({"type": "http.response.body", "body": sent_event(body), "more_body": True})

    async def _close(self) -> None:
        await self.send({"type": "http.response.body", "body": sent_event("[DONE]")})
