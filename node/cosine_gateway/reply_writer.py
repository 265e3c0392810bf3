"""Base classes of the writers of replies, and the fields that the replies of all APIs share."""

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field
from hashlib import sha256
from typing import Any, ClassVar, Final

from starlette.responses import JSONResponse
from starlette.types import Send

from cosine_gateway.api_errors import ApiError
from cosine_gateway.choices import ChoiceEvent, ChoiceFinished, ChoicePart, ChoiceStarted
from cosine_gateway.event_stream import EventStream, Headers, sent_event
from cosine_gateway.fields import told_ignored
from cosine_p2p.replies.parts import Part
from cosine_p2p.request.origins import joined_origins
from cosine_p2p.request.results import AppliedConfig, Generation
from cosine_protocol.digests import request_digest
from cosine_protocol.request import Request

Json = dict[str, Any]

VERIFIER_HEADER: Final = b"x-cosine-verifier"
"""The peer ids of the verifiers that write the text."""
TARGET_HEADER: Final = b"x-cosine-target"
"""The content digest of the target, in hexadecimal digits."""
PROOF_HEADER: Final = b"x-cosine-proof"
"""The digest of the request that the verifiers' signatures and logs name, in hexadecimal digits."""
IGNORED_HEADER: Final = b"x-cosine-ignored"
"""The fields of the request that nobody knows and that cannot change the text."""
OWN_HEADERS: Final = tuple(name.decode() for name in (VERIFIER_HEADER, TARGET_HEADER, PROOF_HEADER, IGNORED_HEADER))


@dataclass(kw_only=True)
class ReplyWriter(ABC):
    """Takes the events of all choices and writes the reply.

    `created_s` is Unix time. `started` is the first choice's beginning, once it has begun. `end_mark` ends a
    stream.
    """

    end_mark: ClassVar[bytes] = b""

    request_id: str
    created_s: int
    model: str
    seed: int
    send: Send
    is_streamed: bool
    ignored: tuple[str, ...] = ()
    started: ChoiceStarted | None = None
    finished: list[ChoiceFinished] = field(default_factory=list)
    stream: EventStream = field(init=False)
    _began_s: float = field(init=False)

    def __post_init__(self) -> None:
        self.stream = EventStream(
            self.send,
            headers=self._origin,
            is_body=not self.is_streamed,
            # Its status cannot be taken back: a body may begin once a verifier serves the request.
            may_wait=lambda: self.is_streamed or (self.started is not None and bool(self.started.serving())),
        )
        self._began_s = time.monotonic()

    async def take(self, event: ChoiceEvent) -> None:
        match event:
            case ChoiceStarted():
                self.started = self.started or event
            case ChoicePart():
                await self._take_part(event)
            case ChoiceFinished():
                self.finished.append(event)
                await self._take_finished(event)

    @abstractmethod
    async def _take_part(self, event: ChoicePart) -> None: ...

    @abstractmethod
    async def _take_finished(self, finished: ChoiceFinished) -> None: ...

    @abstractmethod
    async def end(self) -> None:
        """Write the rest after all choices have finished."""

    async def fail(self, problem: ApiError) -> None:
        """End the stream with an error, or raise it if no status has been sent.

        A body that has begun is cut off, which its reader cannot take for a reply.
        """
        if not self.stream.is_begun:
            raise problem
        if not self.is_streamed:
            return
        for event in self._failure(problem):
            await self._write_event(event)
        await self.stream.write(self.end_mark, is_last=True)

    def _failure(self, problem: ApiError) -> Iterable[Json]:
        """The events that end a stream with an error."""
        return [problem.body]

    @property
    def asked(self) -> Request | None:
        """The request to the verifier, once it is known."""
        return None if self.started is None else self.started.request

    def _origin(self) -> Headers:
        """The headers that tell where the reply comes from, as far as it is known when they are sent."""
        timing = [(b"server-timing", f"first;dur={1e3 * (time.monotonic() - self._began_s):.1f}".encode())]
        if self.ignored:
            timing.append((IGNORED_HEADER, told_ignored(self.ignored)))
        if self.started is None:
            return timing
        request = self.started.request
        reports = [report for each in self.finished for report in each.generation.swarm.verifiers]
        verifiers = [report.peer_id for report in reports] or self.started.serving()
        return [
            *timing,
            *([(VERIFIER_HEADER, ", ".join(dict.fromkeys(verifiers)).encode())] if verifiers else []),
            (TARGET_HEADER, request.target_digest.hex().encode()),
            (PROOF_HEADER, request_digest(request).hex().encode()),
        ]

    @property
    def fingerprint(self) -> str:
        """A fingerprint of weights and numerics: if it is equal, equal requests give equal texts."""
        if self.asked is None:
            return ""
        # 48 bits distinguish the few models that one client uses.
        return f"fp_{sha256(self.asked.target_digest + self.asked.numerics.encode()).hexdigest()[:12]}"

    def _metrics(self) -> Json:
        return {"metrics": metrics([each.generation for each in self.finished], seed=self.seed)}

    async def _write_whole(self, body: Json) -> None:
        await self.stream.write(bytes(JSONResponse(body).body), is_last=True)

    async def _write_event(self, body: Json) -> None:
        """Send one server-sent event, with its type as its name."""
        await self.stream.write(sent_event(body, name=body.get("type", "")))


@dataclass(kw_only=True)
class OneTextWriter(ReplyWriter):
    """Writes a reply of one text: one JSON body or, if `is_streamed`, events.

    `is_opened` is set once the events before the text have been sent.
    """

    is_opened: bool = False

    @abstractmethod
    def _opening(self) -> Iterable[Json]:
        """The events before the text."""

    @abstractmethod
    def _added(self, part: Part) -> Iterable[Json]:
        """Take one more part and return its events."""

    @abstractmethod
    def _ended(self, done: Generation) -> Iterable[Json]:
        """End the text and return the events of its end."""

    @abstractmethod
    def _closing(self, done: Generation) -> Iterable[Json]:
        """The events after the text."""

    @abstractmethod
    def _whole(self, done: Generation) -> Json:
        """The body of a reply that is not streamed."""

    async def _take_part(self, event: ChoicePart) -> None:
        await self._grow(self._added(event.part))

    async def _take_finished(self, finished: ChoiceFinished) -> None:
        await self._grow(self._ended(finished.generation))

    async def end(self) -> None:
        (finished,) = self.finished
        if not self.is_streamed:
            await self._write_whole(self._whole(finished.generation))
            return
        await self._tell(self._closing(finished.generation))
        await self.stream.write(self.end_mark, is_last=True)

    async def _grow(self, events: Iterable[Json]) -> None:
        if not self.is_opened:
            self.is_opened = True
            await self._tell(self._opening())
        await self._tell(events)

    async def _tell(self, events: Iterable[Json]) -> None:
        for event in events:
            if self.is_streamed:
                await self._write_event(event)


MakeWriter = Callable[..., ReplyWriter]
"""Makes the writer of a reply from the `Body`, its `TextRequest` and the keyword fields that all writers have."""


def reason_of(finished: ChoiceFinished) -> str:
    """OpenAI's `finish_reason`."""
    reason = finished.generation.finish_reason
    return "tool_calls" if finished.generation.tool_calls and reason == "stop" else reason


def metrics(generations: Sequence[Generation], *, seed: int) -> Json:
    """The `metrics` of a response: speculative decoding over all choices, and the model's generation config."""
    drafters: dict[str, Json] = {}
    for report in (report for each in generations for report in each.swarm.drafters):
        entry = {"peer_id": report.peer_id, "domain": report.domain, "drafted": 0, "accepted": 0}
        total = drafters.setdefault(report.peer_id, entry)
        total["drafted"] += report.drafted
        total["accepted"] += report.accepted
    drafted = sum(each.swarm.drafted for each in generations)
    offered = sum(each.swarm.offered for each in generations)
    accepted = sum(each.swarm.accepted for each in generations)
    rounds = sum(each.swarm.rounds for each in generations)
    tokens = sum(each.usage.completion_tokens for each in generations)
    return {
        "speculative_decoding": {
            "drafted": drafted,
            "offered": offered,
            "accepted": accepted,
            "acceptance_rate": round(accepted / offered, 4) if offered else 0.0,
            "rounds": rounds,
            "tokens_per_round": round(tokens / rounds, 4) if rounds else 0.0,
            "drafters": list(drafters.values()),
            "origins": [asdict(origin) for origin in joined_origins(each.swarm.origins for each in generations)],
            "strategy": generations[0].swarm.strategy,
            "seed": seed,
        },
        "generation_config": own_config(generations[0].generation_config),
    }


def own_config(applied: AppliedConfig) -> Json:
    """The options that the model's own generation config set, and those that are not honoured."""
    return {"options": dict(applied.options), "not_honoured": list(applied.not_honoured)}
