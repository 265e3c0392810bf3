"""Who writes a reply, whatever the API: takes the events of its choices, and sends it whole or as it comes."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from hashlib import sha256
from typing import Any, Protocol

from starlette.responses import JSONResponse
from starlette.types import Send

from cosine_node.gateway.api_errors import ApiError
from cosine_node.gateway.body import Body
from cosine_node.gateway.choices import ChoiceEvent, ChoiceFinished, ChoicePart, ChoiceStarted
from cosine_node.gateway.event_stream import EventStream, sent_event
from cosine_node.gateway.text_request import TextRequest
from cosine_node.metrics.generations import FINISHED_REASONS
from cosine_p2p.replies.parts import Part
from cosine_p2p.request.logprobs import NamedToken
from cosine_p2p.request.origins import TokenOrigin, joined_origins
from cosine_p2p.request.results import AppliedConfig, Generation
from cosine_protocol.request import Request

Json = dict[str, Any]


@dataclass(kw_only=True)
class ReplyWriter(ABC):
    """Takes the events of all choices and writes the reply.

    `created_s` is Unix time. `asked` is the request as a verifier sees it, once one is about to be asked. A reply
    that comes in pieces is the `stream`.
    """

    request_id: str
    created_s: int
    model: str
    seed: int
    send: Send
    asked: Request | None = None
    finished: list[ChoiceFinished] = field(default_factory=list)
    stream: EventStream = field(init=False)

    def __post_init__(self) -> None:
        self.stream = EventStream(self.send)

    async def take(self, event: ChoiceEvent) -> None:
        match event:
            case ChoiceStarted(_, request):
                self.asked = request
            case ChoicePart(choice, part, logprobs, origins):
                if logprobs:
                    self._take_logprobs(choice.index, part, logprobs)
                self._take_origins(choice.index, origins)
                await self._take_part(choice.index, part)
            case ChoiceFinished():
                self.finished.append(event)
                await self._take_finished(event)

    def _take_logprobs(self, index: int, part: Part, logprobs: Sequence[NamedToken]) -> None:
        """Keep what is told of the tokens of the part that comes next; APIs that show none leave it."""
        return

    def _take_origins(self, index: int, origins: Sequence[TokenOrigin]) -> None:
        """Keep whose the tokens of the part that comes next are, likewise."""
        return

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

    @property
    def fingerprint(self) -> str:
        """Equal for equal weights and numerics, so that equal requests give equal text."""
        if self.asked is None:
            return ""
        # 48 bits, as git abbreviates: enough to tell apart the few models that one client meets.
        return f"fp_{sha256(self.asked.target_digest + self.asked.numerics.encode()).hexdigest()[:12]}"

    def _metrics(self) -> Json:
        return {"metrics": metrics([each.generation for each in self.finished], seed=self.seed)}

    async def _write_whole(self, body: Json) -> None:
        response = JSONResponse(body)
        # Sent by hand: a Response takes the scope of a request, which has no part in this.
        start = {"type": "http.response.start", "status": response.status_code, "headers": response.raw_headers}
        await self.send(start)
        await self.send({"type": "http.response.body", "body": response.body})

    async def _write_event(self, body: Json, *, name: str = "") -> None:
        """Send one server-sent event."""
        await self.stream.write(sent_event(body, name=name))

    async def _close(self, last: bytes = b"") -> None:
        """End the stream."""
        await self.stream.write(last, is_last=True)


@dataclass(kw_only=True)
class OneTextWriter(ReplyWriter):
    """Writes a reply of one text: one JSON body or, if `is_streamed`, its events as they come.

    Once `is_opened`, the events before the text have been told.
    """

    is_streamed: bool
    is_opened: bool = False

    @abstractmethod
    def _opening(self) -> Iterable[Json]:
        """The events before the text."""

    @abstractmethod
    def _added(self, part: Part) -> Iterable[Json]:
        """Take one more part; the events that tell it."""

    @abstractmethod
    def _ended(self, done: Generation) -> Iterable[Json]:
        """End the text; the events that tell it."""

    @abstractmethod
    def _closing(self, done: Generation) -> Iterable[Json]:
        """The events after the text."""

    @abstractmethod
    def _failure(self, problem: ApiError) -> Iterable[Json]:
        """The events that end a stream with an error."""

    @abstractmethod
    def _whole(self, done: Generation) -> Json:
        """The body of a reply that is not streamed."""

    async def _take_part(self, index: int, part: Part) -> None:
        await self._grow(self._added(part))

    async def _take_finished(self, finished: ChoiceFinished) -> None:
        await self._grow(self._ended(finished.generation))

    async def end(self) -> None:
        (finished,) = self.finished
        if not self.is_streamed:
            await self._write_whole(self._whole(finished.generation))
            return
        await self._tell(self._closing(finished.generation))
        await self._close()

    async def fail(self, problem: ApiError) -> None:
        """End with an error: in the stream, or by raising it while no status has been sent."""
        if not self.stream.is_begun:
            raise problem
        await self._tell(self._failure(problem))
        await self._close()

    async def _grow(self, events: Iterable[Json]) -> None:
        if not self.is_opened:
            self.is_opened = True
            await self._tell(self._opening())
        await self._tell(events)

    async def _tell(self, events: Iterable[Json]) -> None:
        for event in events:
            if self.is_streamed:
                await self._write_event(event, name=event["type"])


class MakeWriter(Protocol):
    """Makes the writer of the reply to a request; `about` are fields that all writers have."""

    def __call__(self, body: Body, wanted: TextRequest, /, **about: Any) -> ReplyWriter: ...


def reason_of(finished: ChoiceFinished) -> str:
    """OpenAI's `finish_reason`."""
    reason = FINISHED_REASONS[finished.generation.finish_reason]
    return "tool_calls" if finished.generation.tool_calls and reason == "stop" else reason


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
