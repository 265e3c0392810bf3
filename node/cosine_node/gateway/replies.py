"""Response bodies of the chat and completion endpoints, whole and in pieces. Pure."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Any, Final

from cosine_node.gateway.choices import ChoiceFinished
from cosine_node.metrics.generations import FINISHED_REASONS
from cosine_p2p.generation import AppliedConfig, Generation
from cosine_protocol.request import Request

FINGERPRINT_DIGITS: Final = 12
"""48 bits, as git abbreviates: enough to tell apart the few models that one client meets."""

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


def event(body: Mapping[str, Any] | str) -> bytes:
    """One server-sent event."""
    data = body if isinstance(body, str) else json.dumps(body, ensure_ascii=False, separators=(",", ":"))
    return f"data: {data}\n\n".encode()


def _piece(heading: Heading, choices: list[Json]) -> Json:
    return heading.body(heading.style.piece_kind, choices)


def _choice(index: int, content: Json, reason: str | None) -> Json:
    return {"index": index, **content, "logprobs": None, "finish_reason": reason}
