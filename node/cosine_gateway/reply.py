"""Replies: a format of each API, which is pure, and the writer that sends it whole or in server-sent events."""

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from hashlib import sha256
from typing import ClassVar, Final

from starlette.responses import JSONResponse
from starlette.types import Send

from cosine_gateway.api_errors import ApiError
from cosine_gateway.body import Body, Json
from cosine_gateway.choices import ChoiceEvent, ChoiceFinished, ChoicePart, ChoiceStarted
from cosine_gateway.event_stream import EventStream, Headers, sent_event
from cosine_gateway.fields import ignored_fields_header
from cosine_gateway.text_request import Parse, TextRequest
from cosine_p2p.request.origins import joined_origins
from cosine_p2p.request.results import AppliedConfig, Generation
from cosine_protocol.digests import request_digest

VERIFIER_HEADER: Final = b"x-cosine-verifier"
"""The peer ids of the verifiers that write the text."""
TARGET_HEADER: Final = b"x-cosine-target"
"""The content digest of the target, in hexadecimal digits."""
PROOF_HEADER: Final = b"x-cosine-proof"
"""The digest of the request that the verifiers' signatures and logs name, in hexadecimal digits."""
IGNORED_HEADER: Final = b"x-cosine-ignored"
"""The unknown fields of the request, which are ignored because they cannot change the text."""
OWN_HEADERS: Final = tuple(name.decode() for name in (VERIFIER_HEADER, TARGET_HEADER, PROOF_HEADER, IGNORED_HEADER))


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplyContext:
    """A request for text as its reply needs it. `created_s` is Unix time, `seed` the one that is used."""

    body: Body
    wanted: TextRequest
    request_id: str
    created_s: int
    model: str
    seed: int


class ReplyFormat(ABC):
    """The reply to one request in the format of its API: turns the events of its choices into JSON. Pure.

    `started` is the first choice's beginning, once it has begun. `end_mark` ends a stream.
    """

    end_mark: ClassVar[bytes] = b""

    def __init__(self, context: ReplyContext) -> None:
        self.context = context
        self.started: ChoiceStarted | None = None
        self.finished: list[ChoiceFinished] = []
        self._opened: set[int] = set()

    def take(self, event: ChoiceEvent) -> Iterable[Json]:
        """Take the next event and yield those of the stream."""
        if isinstance(event, ChoiceStarted):
            self.started = self.started or event
            return
        if event.choice.index not in self._opened:
            self._opened.add(event.choice.index)
            yield from self._opening(event.choice.index)
        if isinstance(event, ChoicePart):
            yield from self._added(event)
        else:
            self.finished.append(event)
            yield from self._ended(event)

    @abstractmethod
    def _opening(self, index: int) -> Iterable[Json]:
        """The events before the first part of a choice."""

    @abstractmethod
    def _added(self, event: ChoicePart) -> Iterable[Json]:
        """Take one more part and return its events."""

    @abstractmethod
    def _ended(self, event: ChoiceFinished) -> Iterable[Json]:
        """End a choice and return the events of its end."""

    @abstractmethod
    def closing(self) -> Iterable[Json]:
        """The events after all choices have finished."""

    @abstractmethod
    def whole(self) -> Json:
        """The body of a reply that is not streamed, after all choices have finished."""

    def failure(self, problem: ApiError) -> Iterable[Json]:
        """The events that end a stream with an error."""
        return [problem.body]

    @property
    def fingerprint(self) -> str:
        """A fingerprint of weights and numerics: if it is equal, equal requests give equal texts."""
        if self.started is None:
            return ""
        request = self.started.request
        # 48 bits distinguish the few models that one client uses.
        return f"fp_{sha256(request.target_digest + request.numerics.encode()).hexdigest()[:12]}"

    def _metrics(self) -> Json:
        return {"metrics": metrics([each.generation for each in self.finished], seed=self.context.seed)}


@dataclass(frozen=True, slots=True)
class Api:
    """An API that generates text: its path below `/v1`, and how a request is read and its reply formatted."""

    path: str
    parse: Parse
    reply: Callable[[ReplyContext], ReplyFormat]


class ReplyWriter:
    """Sends a reply to its client: one JSON body or a stream of events."""

    def __init__(self, reply: ReplyFormat, send: Send) -> None:
        self.reply = reply
        self._is_streamed = reply.context.wanted.is_streamed
        self._began_s = time.monotonic()
        self.stream = EventStream(
            send, headers=self._origin, is_body=not self._is_streamed, may_wait=self._may_wait
        )

    def _may_wait(self) -> bool:
        """A status cannot be taken back: a body may begin once a verifier serves the request."""
        started = self.reply.started
        return self._is_streamed or (started is not None and bool(started.serving()))

    async def take(self, event: ChoiceEvent) -> None:
        await self._tell(self.reply.take(event))

    async def end(self) -> None:
        """Write the rest after all choices have finished."""
        if self._is_streamed:
            await self._tell(self.reply.closing())
            await self.stream.write(self.reply.end_mark, is_last=True)
        else:
            await self.stream.write(bytes(JSONResponse(self.reply.whole()).body), is_last=True)

    async def fail(self, problem: ApiError) -> None:
        """End the stream with an error, or raise it if no status has been sent.

        A body that has begun is cut off, which its reader cannot take for a reply.
        """
        if not self.stream.is_begun:
            raise problem
        if self._is_streamed:
            await self._tell(self.reply.failure(problem))
            await self.stream.write(self.reply.end_mark, is_last=True)

    async def _tell(self, events: Iterable[Json]) -> None:
        """Send server-sent events with their types as their names; the parts of a body are only collected."""
        for event in events:
            if self._is_streamed:
                await self.stream.write(sent_event(event, name=event.get("type", "")))

    def _origin(self) -> Headers:
        """The headers that identify the origin of the reply, if it is known when they are sent."""
        headers = [(b"server-timing", f"first;dur={1e3 * (time.monotonic() - self._began_s):.1f}".encode())]
        if ignored := self.reply.context.wanted.ignored:
            headers.append((IGNORED_HEADER, ignored_fields_header(ignored)))
        if (started := self.reply.started) is not None:
            reports = [report for each in self.reply.finished for report in each.generation.swarm.verifiers]
            if verifiers := [report.peer_id for report in reports] or started.serving():
                headers.append((VERIFIER_HEADER, ", ".join(dict.fromkeys(verifiers)).encode()))
            headers.append((TARGET_HEADER, started.request.target_digest.hex().encode()))
            headers.append((PROOF_HEADER, request_digest(started.request).hex().encode()))
        return headers


def reason_of(finished: ChoiceFinished) -> str:
    """OpenAI's `finish_reason`."""
    reason = finished.generation.finish_reason
    return "tool_calls" if finished.generation.tool_calls and reason == "stop" else reason


def metrics(generations: Sequence[Generation], *, seed: int) -> Json:
    """The `metrics` of a response: speculative decoding over all choices, and the model's generation config."""
    swarms = [each.swarm for each in generations]
    drafters: dict[str, Json] = {}
    for report in (report for swarm in swarms for report in swarm.drafters):
        entry = {"peer_id": report.peer_id, "domain": report.domain, "drafted": 0, "accepted": 0}
        total = drafters.setdefault(report.peer_id, entry)
        total["drafted"] += report.drafted
        total["accepted"] += report.accepted
    counts = {
        name: sum(getattr(swarm, name) for swarm in swarms) for name in ("drafted", "offered", "accepted", "rounds")
    }
    tokens = sum(each.usage.completion_tokens for each in generations)
    return {
        "speculative_decoding": {
            **counts,
            "acceptance_rate": round(counts["accepted"] / counts["offered"], 4) if counts["offered"] else 0.0,
            "tokens_per_round": round(tokens / counts["rounds"], 4) if counts["rounds"] else 0.0,
            "drafters": list(drafters.values()),
            "origins": [asdict(origin) for origin in joined_origins(swarm.origins for swarm in swarms)],
            "strategy": swarms[0].strategy,
            "seed": seed,
        },
        "generation_config": own_config(generations[0].generation_config),
    }


def own_config(applied: AppliedConfig) -> Json:
    """The options that the model's own generation config set, and those that are not honoured."""
    return {"options": dict(applied.options), "not_honoured": list(applied.not_honoured)}
