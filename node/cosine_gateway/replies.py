"""Writers of the replies of the chat and completion endpoints, whole and streamed."""

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Final

from cosine_gateway.body import Body
from cosine_gateway.choices import ChoiceFinished, ChoicePart
from cosine_gateway.event_stream import sent_event
from cosine_gateway.logprobs import ChatLogprobs, CompletionLogprobs
from cosine_gateway.reply_writer import Json, MakeWriter, ReplyWriter, reason_of
from cosine_gateway.text_request import TextRequest
from cosine_p2p.replies.parts import CallArguments, CallBegun, Content, Part, Reasoning, Reply
from cosine_p2p.request.results import Generation

PROOF_FORMAT: Final = "cosine-proof/1"


@dataclass(frozen=True, slots=True, kw_only=True)
class Style:
    """The format of an endpoint's choices.

    `whole` formats a complete reply, `piece` one part of a stream, None at its end; `first` precedes the parts.
    """

    id_prefix: str
    whole_kind: str
    piece_kind: str
    whole: Callable[[Reply], Json]
    piece: Callable[[Part | None], Json]
    logprobs: Callable[[], ChatLogprobs | CompletionLogprobs]
    first: Json | None = None


def _reasoning(text: str) -> Json:
    """Reasoning under both names that clients read: DeepSeek's, and that of vLLM and OpenRouter."""
    return {"reasoning_content": text, "reasoning": text} if text else {}


def _message(reply: Reply) -> Json:
    """The complete message of a chat."""
    calls = [
        {"id": call.call_id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
        for call in reply.tool_calls
    ]
    message = {"role": "assistant", "content": None if calls and not reply.content else reply.content}
    message |= {"refusal": None, **_reasoning(reply.reasoning)}
    return {"message": message | ({"tool_calls": calls} if calls else {})}


def _delta(part: Part | None) -> Json:
    """One part of a chat's stream. A call begins with its name; its arguments follow under its index."""
    match part:
        case Content(text):
            return {"delta": {"content": text}}
        case Reasoning(text):
            return {"delta": _reasoning(text)}
        case CallBegun(index, call_id, name):
            function = {"name": name, "arguments": ""}
            call = {"index": index, "id": call_id, "type": "function", "function": function}
            return {"delta": {"tool_calls": [call]}}
        case CallArguments(index, text):
            return {"delta": {"tool_calls": [{"index": index, "function": {"arguments": text}}]}}
    return {"delta": {}}


CHAT: Final = Style(
    id_prefix="chatcmpl-",
    whole_kind="chat.completion",
    piece_kind="chat.completion.chunk",
    whole=_message,
    piece=_delta,
    logprobs=ChatLogprobs,
    first={"delta": {"role": "assistant", "content": ""}},
)
COMPLETION: Final = Style(
    id_prefix="cmpl-",
    whole_kind="text_completion",
    piece_kind="text_completion",
    whole=lambda reply: {"text": reply.content},
    piece=lambda part: {"text": part.text if isinstance(part, Content) else ""},
    logprobs=CompletionLogprobs,
)


def usage(finished: Sequence[ChoiceFinished]) -> Json:
    """Token counts; a prompt counts once for all its choices, with the tokens that its verifier had cached."""
    prompt = sum(each.generation.usage.prompt_tokens for each in finished if each.choice.number == 0)
    cached = sum(each.generation.usage.cached_tokens for each in finished if each.choice.number == 0)
    completion = sum(each.generation.usage.completion_tokens for each in finished)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
        "prompt_tokens_details": {"cached_tokens": cached},
        "completion_tokens_details": {
            "reasoning_tokens": sum(each.generation.usage.reasoning_tokens for each in finished),
            "accepted_prediction_tokens": sum(
                each.generation.usage.accepted_prediction_tokens for each in finished
            ),
            "rejected_prediction_tokens": sum(
                each.generation.usage.rejected_prediction_tokens for each in finished
            ),
        },
    }


@dataclass(kw_only=True)
class ChoicesWriter(ReplyWriter):
    """The common part of the writers of choices.

    With `tells_provenance`, choices have the `provenance` of their tokens and finally an `account`.
    """

    style: Style
    tells_provenance: bool = False
    _shapes: dict[int, ChatLogprobs | CompletionLogprobs] = field(default_factory=dict)
    _told: dict[int, Json] = field(default_factory=dict)
    _provenance: dict[int, list[Json]] = field(default_factory=dict)

    def _note_tokens(self, event: ChoicePart) -> None:
        """Keep the log-probabilities and origins of a part's tokens."""
        index, part = event.choice.index, event.part
        self._provenance.setdefault(index, []).extend(map(asdict, event.origins))
        if not event.logprobs:
            return
        shape = self._shapes.setdefault(index, self.style.logprobs())
        told = shape.of(event.logprobs, part.text if isinstance(part, Content) else "")
        before = self._told.setdefault(index, told)
        if before is not told:
            for name, values in told.items():
                # All values are lists except a chat's `refusal`.
                if values is not None:
                    before[name] += values

    def _body(self, kind: str, choices: list[Json]) -> Json:
        return {
            "id": self.style.id_prefix + self.request_id,
            "object": kind,
            "created": self.created_s,
            "model": self.model,
            "system_fingerprint": self.fingerprint,
            "choices": choices,
        }

    def _choice(self, index: int, content: Json, reason: str | None = None, done: Generation | None = None) -> Json:
        choice = {"index": index, **content, "logprobs": self._told.pop(index, None), "finish_reason": reason}
        if self.tells_provenance:
            choice["provenance"] = self._provenance.pop(index, [])
            choice |= {"account": account_of(done)} if done is not None else {}
        return choice


@dataclass(kw_only=True)
class WholeReplyWriter(ChoicesWriter):
    """Writes one JSON body at the end."""

    parts: defaultdict[int, list[Part]] = field(default_factory=lambda: defaultdict(list))

    async def _take_part(self, event: ChoicePart) -> None:
        self._note_tokens(event)
        self.parts[event.choice.index].append(event.part)

    async def _take_finished(self, finished: ChoiceFinished) -> None:
        return

    async def end(self) -> None:
        self.finished.sort(key=lambda each: each.choice.index)
        choices = [
            self._choice(
                each.choice.index,
                self.style.whole(Reply.of(self.parts[each.choice.index])),
                reason_of(each),
                each.generation,
            )
            for each in self.finished
        ]
        body = self._body(self.style.whole_kind, choices) | {"usage": usage(self.finished)} | self._metrics()
        await self._write_whole(body)


@dataclass(kw_only=True)
class StreamedReplyWriter(ChoicesWriter):
    """Streams the events of all choices.

    The last piece has the metrics; with `includes_usage` it is an additional one without choices.
    """

    end_mark = sent_event("[DONE]")

    choices: int
    includes_usage: bool
    opened: set[int] = field(default_factory=set)

    async def _take_part(self, event: ChoicePart) -> None:
        self._note_tokens(event)
        await self._open(event.choice.index)
        await self._write_piece([self._choice(event.choice.index, self.style.piece(event.part))])

    async def _take_finished(self, finished: ChoiceFinished) -> None:
        index = finished.choice.index
        await self._open(index)
        is_last = len(self.finished) == self.choices and not self.includes_usage
        last = self._choice(index, self.style.piece(None), reason_of(finished), finished.generation)
        await self._write_piece([last], self._metrics() if is_last else {})

    async def end(self) -> None:
        if self.includes_usage:
            await self._write_piece([], {"usage": usage(self.finished)} | self._metrics())
        await self.stream.write(self.end_mark, is_last=True)

    async def _open(self, index: int) -> None:
        """Write the style's first event of a choice."""
        if index not in self.opened:
            self.opened.add(index)
            if self.style.first:
                told, provenance = self._told.pop(index, None), self._provenance.pop(index, [])
                await self._write_piece([self._choice(index, self.style.first)])
                self._told |= {} if told is None else {index: told}
                self._provenance[index] = provenance

    async def _write_piece(self, choices: list[Json], more: Json | None = None) -> None:
        nothing_yet = {"usage": None} if self.includes_usage else {}
        await self._write_event(self._body(self.style.piece_kind, choices) | nothing_yet | (more or {}))


def choices_writer(style: Style) -> MakeWriter:
    """Return the `MakeWriter` of an endpoint whose replies are choices of this style."""

    def make(_: Body, wanted: TextRequest, /, **about: Any) -> ReplyWriter:
        about |= {"tells_provenance": wanted.tells_provenance, "is_streamed": wanted.is_streamed}
        if not wanted.is_streamed:
            return WholeReplyWriter(style=style, **about)
        choices = len(wanted.prompts) * wanted.n
        return StreamedReplyWriter(style=style, choices=choices, includes_usage=wanted.includes_usage, **about)

    return make


def account_of(done: Generation) -> Json:
    """Return the speed of a generation, its authors, and the statements that they signed."""
    return {
        "seconds": round(done.seconds, 4),
        "time_to_first_token_s": round(done.time_to_first_token_s, 4),
        "tokens": done.usage.completion_tokens,
        "rounds": done.swarm.rounds,
        "accepted": done.swarm.accepted,
        "offered": done.swarm.offered,
        "plain_pass_s": done.swarm.plain_pass_s,
        "coordinator": done.swarm.coordinator,
        "verifiers": [asdict(each) for each in done.swarm.verifiers],
        "drafters": [asdict(each) for each in done.swarm.drafters],
        "why": list(done.swarm.why),
        "proof": proof_of(done),
    }


def proof_of(done: Generation) -> Json:
    """Return the signed statements about a text, which anybody can check; `evidence` as in an audit."""
    evidence = done.audit.evidence if done.audit is not None else ()
    return {"format": PROOF_FORMAT, "evidence": [asdict(piece) for piece in evidence]}
