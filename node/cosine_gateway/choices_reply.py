"""Replies of choices, the common format of chats and completions."""

from abc import abstractmethod
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from typing import ClassVar, Final

from cosine_gateway.body import Json
from cosine_gateway.choices import ChoiceFinished, ChoicePart
from cosine_gateway.event_stream import sent_event
from cosine_gateway.logprobs import ChatLogprobs, CompletionLogprobs
from cosine_gateway.reply import ReplyContext, ReplyFormat, reason_of
from cosine_p2p.replies.parts import Content, Part
from cosine_p2p.request.results import Generation

PROOF_FORMAT: Final = "cosine-proof/1"


@dataclass
class _Choice:
    """A choice so far; unless it is streamed, with the log-probabilities and the provenance of all its tokens."""

    shape: ChatLogprobs | CompletionLogprobs
    parts: list[Part] = field(default_factory=list)
    logprobs: Json = field(default_factory=dict)
    provenance: list[Json] = field(default_factory=list)

    def add(self, part: Part, logprobs: Json | None, provenance: list[Json]) -> None:
        self.parts.append(part)
        self.provenance += provenance
        for name, values in (logprobs or {}).items():
            # All values are lists except a chat's `refusal`.
            if values is None:
                self.logprobs[name] = None
            else:
                self.logprobs.setdefault(name, []).extend(values)


class ChoicesReply(ReplyFormat):
    """A reply of choices, each in its own pieces of the stream.

    The last piece has the metrics; if the usage is requested, it is an additional one without choices. With
    provenance, choices have the `provenance` of their tokens and finally an `account`.
    """

    end_mark = sent_event("[DONE]")
    id_prefix: ClassVar[str]
    whole_kind: ClassVar[str]
    piece_kind: ClassVar[str]
    shape: ClassVar[type[ChatLogprobs | CompletionLogprobs]]

    def __init__(self, context: ReplyContext) -> None:
        super().__init__(context)
        self._choices = defaultdict[int, _Choice](lambda: _Choice(self.shape()))

    @abstractmethod
    def _whole_of(self, parts: list[Part]) -> Json:
        """The content of a whole choice."""

    @abstractmethod
    def _piece_of(self, part: Part | None) -> Json:
        """The content of one part of a choice, None at its end."""

    def _added(self, event: ChoicePart) -> Iterator[Json]:
        choice, part = self._choices[event.choice.index], event.part
        said = part.text if isinstance(part, Content) else ""
        logprobs = choice.shape.of(event.logprobs, said) if event.logprobs else None
        provenance = list(map(asdict, event.origins))
        if not self.context.wanted.is_streamed:
            choice.add(part, logprobs, provenance)
        yield self._piece([self._told(event.choice.index, self._piece_of(part), logprobs, provenance)])

    def _ended(self, event: ChoiceFinished) -> Iterator[Json]:
        is_last = len(self.finished) == len(self.context.wanted.prompts) * self.context.wanted.n
        more = self._metrics() if is_last and not self.context.wanted.includes_usage else {}
        yield self._piece([self._told(event.choice.index, self._piece_of(None), finished=event)]) | more

    def closing(self) -> Iterator[Json]:
        if self.context.wanted.includes_usage:
            yield self._piece([]) | {"usage": self._usage()} | self._metrics()

    def whole(self) -> Json:
        self.finished.sort(key=lambda each: each.choice.index)
        told = []
        for each in self.finished:
            choice = self._choices[each.choice.index]
            content = self._whole_of(choice.parts)
            told.append(self._told(each.choice.index, content, choice.logprobs or None, choice.provenance, each))
        return self._body(self.whole_kind, told) | {"usage": self._usage()} | self._metrics()

    def _told(
        self,
        index: int,
        content: Json,
        logprobs: Json | None = None,
        provenance: list[Json] | None = None,
        finished: ChoiceFinished | None = None,
    ) -> Json:
        reason = None if finished is None else reason_of(finished)
        choice = {"index": index, **content, "logprobs": logprobs, "finish_reason": reason}
        if self.context.wanted.tells_provenance:
            choice["provenance"] = provenance or []
            choice |= {} if finished is None else {"account": account_of(finished.generation)}
        return choice

    def _piece(self, choices: list[Json]) -> Json:
        nothing_yet = {"usage": None} if self.context.wanted.includes_usage else {}
        return self._body(self.piece_kind, choices) | nothing_yet

    def _body(self, kind: str, choices: list[Json]) -> Json:
        return {
            "id": self.id_prefix + self.context.request_id,
            "object": kind,
            "created": self.context.created_s,
            "model": self.context.model,
            "system_fingerprint": self.fingerprint,
            "choices": choices,
        }

    def _usage(self) -> Json:
        """Token counts; a prompt counts once for all its choices, with the tokens that its verifier had cached."""
        usages = [each.generation.usage for each in self.finished]
        prompts = [each.generation.usage for each in self.finished if each.choice.number == 0]
        prompt, completion = (
            sum(each.prompt_tokens for each in prompts),
            sum(each.completion_tokens for each in usages),
        )
        details = ("reasoning_tokens", "accepted_prediction_tokens", "rejected_prediction_tokens")
        return {
            "prompt_tokens": prompt,
            "completion_tokens": completion,
            "total_tokens": prompt + completion,
            "prompt_tokens_details": {"cached_tokens": sum(each.cached_tokens for each in prompts)},
            "completion_tokens_details": {name: sum(getattr(each, name) for each in usages) for name in details},
        }


def account_of(done: Generation) -> Json:
    """Return the speed of a generation, its authors, and the statements that they signed.

    Anyone can check the `proof`; its `evidence` is that of an audit.
    """
    evidence = done.audit.evidence if done.audit is not None else ()
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
        "proof": {"format": PROOF_FORMAT, "evidence": [asdict(piece) for piece in evidence]},
    }
